"""A loop in a thread of its own, for callers whose own loop runs already, or who have none.

It belongs to one process: a fork's child has a copy of its objects, and no engine.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from hotreload.errors import BadRequest, NotServing


class Home:
    """The process that made this object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """True in that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """BadRequest in a fork's child."""
        if not self.is_here:
            raise BadRequest(
                f"this engine runs in process {self._process}, of which this one ({os.getpid()}) "
                "is a fork: ask it there, and start processes with multiprocessing's 'spawn'"
            )


class LoopThread:
    """Runs coroutines while the caller, in any other thread, waits for them."""

    def __init__(self) -> None:
        self.home = Home()
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._guard = threading.Lock()
        """Held for a moment while the next two are read or changed."""
        self._is_open = True
        self._calls: set[_Call[Any]] = set()
        """Calls that have not ended."""
        # A daemon, since a program may end without having closed what it holds.
        self._thread = threading.Thread(target=self._run, name="hotreload-loop", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    @property
    def is_open(self) -> bool:
        """True while it takes work."""
        return self._is_open

    def check_outside(self) -> None:
        """BadRequest in a fork's child, and in the loop's own thread: it would wait for itself."""
        self.home.check()
        if threading.current_thread() is self._thread:
            raise BadRequest(
                "hotreload's own thread (that of an observer) cannot wait for itself: begin a task "
                "with HotEngine.asynchronous there, or call from another thread"
            )

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Return the work's result; an interrupt cancels it, and is raised when it has ended."""
        call = _Call(work)
        try:
            self.check_outside()
        except BadRequest:
            call.end()
            raise
        try:
            self._begin(call)
            return call.result.result()
        except CancelledError:
            if self._is_open:
                raise
            raise NotServing("the engine was closed meanwhile") from None
        except BaseException:
            if not call.result.done() and call in self._calls:  # the caller's, and not the work's
                with suppress(RuntimeError):  # the loop has ended, and the work with it
                    self._loop.call_soon_threadsafe(call.cancel)
                wait([call.result])
            raise
        finally:
            self._end(call)
            del call  # an error holds this frame, and what holds the error is held by the call

    def _begin(self, call: "_Call[Any]") -> None:
        with self._guard:
            if not self._is_open:
                raise NotServing("the engine is closed")
            self._calls.add(call)
            self._loop.call_soon_threadsafe(call.begin, self._loop)

    def _end(self, call: "_Call[Any]") -> None:
        with self._guard:
            self._calls.discard(call)
        call.end()

    def close(self) -> None:
        """End the loop and the thread; twice is once."""
        with self._guard:
            was_open, self._is_open = self._is_open, False
        if was_open:
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._until_closed())
        finally:
            with self._guard:
                self._is_open, left = False, [*self._calls]
            for call in left:  # they came while the loop ended, which runs them no more
                call.result.cancel()

    async def _until_closed(self) -> None:
        self._closing = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._closing.wait()


class _Call[T]:
    """Work, and the caller's wait for it."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.result: Future[T] = Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(partial(_pass_on, self.result))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """Let go of the task: an error's frames would keep it, and the task the error."""
        if self._task is None:
            self._work.close()
        self._task = None


def _pass_on[T](result: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        result.cancel()
        result.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())
