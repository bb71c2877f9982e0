"""Waits for work that a cancel cannot stop, or leaves it behind when it takes too long.

Blocking work runs in daemon threads of our own: the loop's pool would keep the process alive until
a hung read returns.
"""

import asyncio
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from typing import Any

from hotreload.errors import NotEnoughMemory, SourceUnavailable

log = logging.getLogger("hotreload.threads")

LEAVE_AFTER = 5.0
"""Seconds a cancel waits for a thread that may hang; one buffer read is plenty."""

LEFT_BEHIND_SECONDS = 60.0
"""Seconds the next work waits for a thread that was left behind: most are slow, not hung."""


async def run_to_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end even if cancelled meanwhile; raise the cancel again afterwards.

    An error of the work comes before the cancel: the caller must record it, and EngineLost must
    seal the gate.
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


async def run_checked[T](
    news: asyncio.Event,
    check: Callable[[], None],
    work: Awaitable[T],
    discard: Callable[[T], Awaitable[None]] | None = None,
) -> T:
    """Run work to its end, unless `check` raises; `check` runs at the start and at each `news`.

    If the work ends all the same, `discard` frees its result. The event is cleared here: others
    that wait for it must look at the state behind it.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            news.clear()
            check()
            await _wait_for_end_or_news(task, news)
        return task.result()
    except BaseException:
        await run_to_end(give_up(task, discard))
        raise
    finally:
        # As in `in_thread`: the task's error holds this frame, and this frame holds the task.
        del task


async def _wait_for_end_or_news(task: asyncio.Future[Any], news: asyncio.Event) -> None:
    told = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()


async def give_up[T](
    task: asyncio.Future[T],
    discard: Callable[[T], Awaitable[None]] | None,
    *others: asyncio.Future[Any],
) -> None:
    """Cancel the tasks, wait for their ends, and free the result that the first may have made."""
    for each in (task, *others):
        each.cancel()
    await asyncio.wait({task, *others})
    if not task.cancelled() and task.exception() is None and discard is not None:
        await discard(task.result())


async def cancel_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def deadline(within: float | None, what: str, setting: str) -> AsyncIterator[None]:
    """Cancel a block that takes too long: SourceUnavailable, as slow storage condemns no
    checkpoint."""
    limit = asyncio.timeout(within)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # the storage raised it, not our limit
            raise
        raise SourceUnavailable(
            f"{what} took longer than {within:g} s ({setting})", code="timed_out"
        ) from error


async def wait_at_most(seconds: float | None, event: asyncio.Event) -> None:
    """Wait until the event is set, or for so many seconds; not at all if they are over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def in_thread[T](
    work: Callable[[threading.Event], T],
    *,
    discard: Callable[[T], None] = lambda result: None,
    leave_as: str | None = None,
    is_read: bool = True,
) -> T:
    """Run blocking work in a thread; a cancel waits for its end and frees its result.

    Set, the event asks the work to stop. `leave_as` names work that may hang: a cancel waits only
    LEAVE_AFTER seconds for it and leaves it behind, and it frees its result whenever it ends. Later
    reads wait for work left behind only if it `is_read`.
    """
    job = _Job(work, discard, leave_as, is_read)
    try:
        return await asyncio.shield(job.start())
    except asyncio.CancelledError:
        await run_to_end(job.end(LEAVE_AFTER if leave_as else None))
        raise
    finally:
        # The job's error holds this frame, and this frame holds the job: such a circle would keep
        # weights until the next collection.
        del job


async def wait_for_left_behind() -> None:
    """Wait a while for reads that were left behind; SourceUnavailable if one still hangs.

    No read begins beside a hanging one: the same fault would hang it, too.
    """
    ends = [asyncio.wrap_future(each.ended) for each in _list_left() if each.is_read]
    if ends:
        await asyncio.wait(ends, timeout=LEFT_BEHIND_SECONDS)
    if (work := left_behind()) is not None:
        raise SourceUnavailable(
            f"{work} still hangs; until it ends nothing else is read", code="hanging"
        )


def left_behind() -> str | None:
    """Return the name of a read that was left behind and still hangs; None without."""
    return next((each.name for each in _list_left() if each.is_read), None)


def list_left_behind() -> list[str]:
    """List the names of all work that was left behind and still hangs."""
    return [each.name for each in _list_left()]


def _list_left() -> list["_Thread"]:
    threads = (each for each in threading.enumerate() if isinstance(each, _Thread))
    return [each for each in threads if each.is_left and not each.ended.done()]


class _Thread(threading.Thread):
    is_left = False
    is_read = True

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # no waiter can cancel it

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ended.set_result(None)


class _Job[T]:
    """One piece of work and its thread; the result goes to the loop, or to `discard`."""

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
        in_context = copy_context().run  # so that its lines of log carry the attempt's id
        self._thread = _Thread(target=in_context, args=(_run, *parts), name=name, daemon=True)
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
        """Ask the work to stop, and free its result."""
        self._cancel.set()
        self._done.add_done_callback(_drop_error)
        await asyncio.wait({self._done}, timeout=within)
        if self._result.cancel():  # else it has ended
            self._thread.is_left = True
            log.warning("threads.left_behind", extra={"work": self._thread.name})
        elif self._result.exception() is None:
            await asyncio.to_thread(self._discard, self._result.result())


def forget_locals(error: BaseException) -> None:
    """Clear the local variables of the frames that raised an error; the trace keeps its lines.

    A kept error would keep them all, such as half a set of weights. Only for an error that no other
    task handles: a coroutine that handles it elsewhere, and waits, would be closed.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]


@contextmanager
def forgetting_locals() -> Iterator[None]:
    """Clear the local variables of the frames of an error that leaves the block."""
    try:
        yield
    except Exception as error:
        forget_locals(error)
        raise


def _drop_error(done: asyncio.Future[Any]) -> None:
    """Read the error of abandoned work: else asyncio would log it as never retrieved."""
    if not done.cancelled():
        done.exception()


def _run[T](
    work: Callable[[threading.Event], T],
    cancel: threading.Event,
    result: Future[T],
    discard: Callable[[T], None],
) -> None:
    """Run in the thread; the future says in one step whether a task still waits for the result."""
    try:
        value = work(cancel)
    except BaseException as error:
        forget_locals(error)
        if result.set_running_or_notify_cancel():
            result.set_exception(error)
        # The error holds this frame, and the future the error: the frame drops the future.
        del result
    else:
        if result.set_running_or_notify_cancel():
            result.set_result(value)
        else:
            discard(value)
            log.info("threads.ended_at_last", extra={"work": threading.current_thread().name})
