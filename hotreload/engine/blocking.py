"""Blocking work in a thread, for callers that may be cancelled meanwhile."""

import asyncio
import threading
from collections.abc import Callable

from hotreload.core.reload import uninterrupted


async def in_thread[T](work: Callable[[threading.Event], T], *, discard: Callable[[T], None]) -> T:
    """Run blocking work in a thread; a cancel waits for its end and frees what it made.

    The work is told by the event that it is wanted no more.
    """
    cancel = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(None, work, cancel)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel.set()
        await uninterrupted(_discarded(future, discard))
        raise
    finally:
        # An error in it holds this frame, and this frame holds it: weights would hang in the
        # circle until some collection.
        del future


async def _discarded[T](future: asyncio.Future[T], discard: Callable[[T], None]) -> None:
    await asyncio.wait({future})
    if future.exception() is None:
        await asyncio.to_thread(discard, future.result())
