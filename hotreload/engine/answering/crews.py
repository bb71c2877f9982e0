"""Runs work that blocks on crews: each kind of work has a fixed number of threads of its own."""

import asyncio
import threading
from collections.abc import Callable

from hotreload.errors import BadRequest, NotServing
from hotreload.threads import in_thread, list_left_behind

CREW_SECONDS = 30.0
"""Time that one piece of work may take; then its thread is left behind."""


class Crew:
    """A fixed number of threads for one kind of work; one that was left behind still counts."""

    def __init__(self, threads: int, work: str) -> None:
        self._threads = threads
        self._name = work
        self._free = asyncio.Semaphore(threads)

    async def run[T](self, work: Callable[[threading.Event], T]) -> T:
        """Do the work in a thread when one is free; the event is set once its request has left."""
        async with self._free:
            if list_left_behind().count(self._name) >= self._threads:
                words = f"every thread for {self._name} hangs in work that took too long"
                raise NotServing(words, code="prompts_hang", retry_after=CREW_SECONDS)
            return await self._in_time(work)

    async def _in_time[T](self, work: Callable[[threading.Event], T]) -> T:
        try:
            async with asyncio.timeout(CREW_SECONDS) as deadline:
                return await in_thread(work, leave_as=self._name, is_read=False)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise BadRequest(f"{self._name} took longer than {CREW_SECONDS:g} s") from None
