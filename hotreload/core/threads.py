"""Work that takes too long, or that a cancel cannot stop: waited for, or left behind.

Blocking work gets daemon threads of our own: the loop's pool would keep the process from ending
until a hung read comes back.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from hotreload.errors import NotEnoughMemory, SourceUnavailable

log = logging.getLogger("hotreload.threads")

LEAVE_AFTER = 5.0
"""How long a cancel waits for a thread that may hang; one buffer read is plenty."""

OUTLAST = 60.0
"""So long what comes next waits for a thread that was left behind: most are busy, and hang not."""


async def uninterrupted[T](work: Coroutine[Any, Any, T]) -> T:
    """Run to the end even when cancelled meanwhile; the cancel is raised again afterwards.

    An error of the work itself comes first: it must be recorded, and EngineLost must seal.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def checked_at[T](
    news: asyncio.Event,
    check: Callable[[], None],
    work: Awaitable[T],
    discard: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """Run work to its end, unless the check, made at the start and at all news, raises.

    What the work made all the same, and nobody gets, is discarded. The event is cleared:
    whoever else waits for it must look at the state it tells of.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            news.clear()
            check()
            await _done_or_told(task, news)
        return task.result()
    except BaseException:
        await uninterrupted(_given_up(task, discard))
        raise
    finally:
        # As in `in_thread`: its error holds this frame, and this frame holds it.
        del task


async def _done_or_told(task: asyncio.Future[Any], news: asyncio.Event) -> None:
    told = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()


async def _given_up[T](
    task: asyncio.Future[T], discard: Callable[[T], Awaitable[None]] | None
) -> None:
    """Cancel it, see it end, and free its result: it may have ended as the cancel came."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None and discard is not None:
        await discard(task.result())


@asynccontextmanager
async def deadline(within: float | None, what: str, setting: str) -> AsyncIterator[None]:
    """Give up what takes longer; SourceUnavailable, as slow storage says nothing about bytes."""
    limit = asyncio.timeout(within)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # the storage's own
            raise
        raise SourceUnavailable(
            f"{what} took longer than {within:g} s ({setting})", code="timed_out"
        ) from error


async def in_thread[T](
    work: Callable[[threading.Event], T],
    *,
    discard: Callable[[T], None] = lambda result: None,
    leave_as: str | None = None,
    is_read: bool = True,
) -> T:
    """Run blocking work in a thread; a cancel waits for its end and frees what it made.

    The work is told by the event that it is wanted no more. With `leave_as`, words for what may
    hang, the wait is short: then it is left behind, and frees what it made whenever it ends.
    What is no read of storage says nothing about storage.
    """
    job = _Job(work, discard, leave_as, is_read)
    try:
        return await asyncio.shield(job.start())
    except asyncio.CancelledError:
        await uninterrupted(job.end(LEAVE_AFTER if leave_as else None))
        raise
    finally:
        # An error in it holds this frame, and this frame holds it: weights would hang in the
        # circle until some collection.
        del job


async def outlast() -> None:
    """Wait a while for what reads something and was left behind; SourceUnavailable if it hangs.

    No read is begun beside one that was given up: it may hang, and so would the next.
    """
    ends = [asyncio.wrap_future(each.ended) for each in _left() if each.is_read]
    if ends:
        await asyncio.wait(ends, timeout=OUTLAST)
    if (work := left_behind()) is not None:
        raise SourceUnavailable(
            f"{work} still hangs; until it ends nothing else is read", code="hanging"
        )


def left_behind() -> str | None:
    """What reads something, was left behind and still hangs, in words."""
    return next((each.name for each in _left() if each.is_read), None)


def all_left_behind() -> list[str]:
    """Everything that was left behind and still hangs, in words."""
    return [each.name for each in _left()]


def _left() -> list["_Thread"]:
    threads = (each for each in threading.enumerate() if isinstance(each, _Thread))
    return [each for each in threads if each.is_left and not each.ended.done()]


class _Thread(threading.Thread):
    is_left = False
    is_read = True

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # nobody who waits for it can cancel it

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ended.set_result(None)


class _Job[T]:
    """One piece of work, its thread, and who gets the result: the loop, or `discard`."""

    def __init__(
        self,
        work: Callable[[threading.Event], T],
        discard: Callable[[T], None],
        name: str | None,
        is_read: bool,
    ) -> None:
        self._cancel = threading.Event()
        self._discard = discard
        self._result: Future[T] = Future()
        parts = (work, self._cancel, self._result, discard)
        self._thread = _Thread(target=_run, args=parts, name=name, daemon=True)
        self._thread.is_read = is_read

    def start(self) -> asyncio.Future[T]:
        self._done = asyncio.wrap_future(self._result)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NotEnoughMemory(
                f"no thread could be started ({error}): raise the limit of processes "
                "(ulimit -u, TasksMax= in the unit)",
                code="threads",
            ) from error
        return self._done

    async def end(self, within: float | None) -> None:
        """Tell the work that it is wanted no more, and see that nothing of it stays."""
        self._cancel.set()
        self._done.add_done_callback(_heard)
        await asyncio.wait({self._done}, timeout=within)
        if self._result.cancel():  # else it has ended
            self._thread.is_left = True
            log.warning("threads.left_behind", extra={"work": self._thread.name})
        elif self._result.exception() is None:
            await asyncio.to_thread(self._discard, self._result.result())


def _heard(done: asyncio.Future[Any]) -> None:
    """What fails because it was given up is no fault; unheard, asyncio would log it as one."""
    if not done.cancelled():
        done.exception()


def _run[T](
    work: Callable[[threading.Event], T],
    cancel: threading.Event,
    result: Future[T],
    discard: Callable[[T], None],
) -> None:
    """In the thread. The future says, in one step, whether anybody waits for the result."""
    try:
        value = work(cancel)
    except BaseException as error:
        if result.set_running_or_notify_cancel():
            result.set_exception(error)
        # The error holds this frame: without the future in it that is no circle.
        del result
    else:
        if result.set_running_or_notify_cancel():
            result.set_result(value)
        else:
            discard(value)
            log.info("threads.ended_at_last", extra={"work": threading.current_thread().name})
