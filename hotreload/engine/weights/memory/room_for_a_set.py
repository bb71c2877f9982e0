"""Lets one set of weights be made at a time: beside the live one there is no room for two.

Work that was given up and left behind keeps the room until it has ended and freed its set.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from hotreload import threads
from hotreload.engine.weights.weights import Weights
from hotreload.errors import NotEnoughMemory

MakeSet = Callable[[threading.Event], Weights]


class Room:
    """The room for one further set of weights; belongs to one engine and its loop."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._given_up: _UnfinishedSet | None = None

    async def make(
        self, make: MakeSet, *, name: str, leave: bool = False, is_read: bool = True
    ) -> Weights:
        """Make a set in a thread; with `leave` a cancel leaves behind a thread that does not end.

        NotEnoughMemory while an earlier thread that was left behind hangs. `is_read` says that the
        thread reads files: if one such thread hangs, others may hang too.
        """
        async with self._one_at_a_time:
            await self._wait_for_given_up()
            unfinished, leave_as = _UnfinishedSet(make, name), name if leave else None
            try:
                return await threads.in_thread(
                    unfinished.run, discard=unfinished.free, leave_as=leave_as, is_read=is_read
                )
            except asyncio.CancelledError:
                self._given_up = unfinished
                raise

    async def _wait_for_given_up(self) -> None:
        earlier = self._given_up
        if earlier is None or earlier.is_over:
            return
        await asyncio.wait({asyncio.wrap_future(earlier.over)}, timeout=threads.LEFT_BEHIND_SECONDS)
        if not earlier.is_over:
            raise NotEnoughMemory(
                f"{earlier.name} was given up and still hangs: beside it and the live weights "
                "there is no room for another set",
                code="hanging",
            )


class _UnfinishedSet:
    """A set that a thread is making; `over` is set if that failed, or its set was discarded."""

    def __init__(self, make: MakeSet, name: str) -> None:
        self.name = name
        self.over: Future[None] = Future()
        self.over.set_running_or_notify_cancel()  # a task that waits for it cannot cancel it
        self._make: MakeSet | None = make

    @property
    def is_over(self) -> bool:
        return self.over.done()

    def run(self, cancel: threading.Event) -> Weights:
        make, self._make = self._make, None
        assert make is not None, "run is called once, since `make` holds weights and is dropped"
        try:
            return make(cancel)
        except BaseException:
            self.over.set_result(None)
            raise

    def free(self, made: Weights) -> None:
        made.drop()
        self.over.set_result(None)
