"""A loop in a thread of its own, for callers whose own loop runs already, or who have none."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from hotreload.errors import NotServing


class LoopThread:
    """Runs coroutines while the caller, in any other thread, waits for them."""

    def __init__(self) -> None:
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        # A daemon, since a program may end without having closed what it holds.
        self._thread = threading.Thread(target=self._run, name="hotreload-loop", daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    @property
    def is_open(self) -> bool:
        """Whether it takes work."""
        return self._thread.is_alive()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to; an interrupt cancels it, and is raised when it has ended."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        if not self.is_open:
            work.close()
            raise NotServing("the engine is closed")
        result: Future[T] = Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(partial(_pass_on, result))

        def cancel() -> None:
            begun[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        try:
            return result.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(cancel)
            wait([result])
            raise
        finally:
            begun.clear()  # an error's frames would keep the task, and the task the error

    def close(self) -> None:
        """End the loop and the thread; twice is once."""
        if self.is_open:
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        self._closing = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._closing.wait()


def _pass_on[T](result: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        result.cancel()
        result.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())
