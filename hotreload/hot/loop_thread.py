"""An event loop in a thread of its own, for programs without a loop or with a running one.

The thread belongs to one process: the child of a fork has copies of the objects, and no engine.
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
    """The process that created this object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """True in that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """BadRequest in the child of a fork."""
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
        """The calls that have not ended."""
        # A daemon thread: a program may end without closing its engine.
        self._thread = threading.Thread(target=self._run, name="hotreload-loop", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    @property
    def is_open(self) -> bool:
        """True while the loop takes work."""
        return self._is_open

    def check_outside(self) -> None:
        """BadRequest in a fork's child, or in the loop's thread, which would wait for itself."""
        self.home.check()
        if threading.current_thread() is self._thread:
            raise BadRequest(
                "hotreload's own thread (that of an observer) cannot wait for itself: begin a task "
                "with HotEngine.asynchronous there, or call from another thread"
            )

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Return the work's result; an interrupt cancels the work, and is raised after its end."""
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
            if not call.result.done() and call in self._calls:  # an interrupt, no error of the work
                with suppress(RuntimeError):  # the loop has ended, and the work with it
                    self._loop.call_soon_threadsafe(call.cancel)
                wait([call.result])
            raise
        finally:
            self._end(call)
            del call  # else a cycle: an error holds this frame, and the call holds the error

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
        """End the loop and the thread; a second call changes nothing."""
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
            for call in left:  # begun while the loop ended: it does not run them
                call.result.cancel()

    async def _until_closed(self) -> None:
        self._closing = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._closing.wait()


class _Call[T]:
    """A coroutine on the loop, and the result that its caller waits for."""

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
        """Drop the task: else an error's frames hold the task, and the task holds the error."""
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
