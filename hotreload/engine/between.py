"""Jobs of ours on the scheduler's own thread, asked for from the event loop."""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

from hotreload.engine.answers import Answers
from hotreload.engine.scheduler import SchedulerThread, Wake
from hotreload.engine.watch import Watch
from hotreload.errors import DrainTimedOut, EngineLost

JOB_SECONDS = 10.0
"""So long the scheduler thread may take to become idle and do a job of ours between two steps."""


class BetweenSteps:
    """Runs a job when nothing runs or waits in the engine; bounded in time, ended by a loss."""

    def __init__(self, scheduler: SchedulerThread, front: Answers, watch: Watch) -> None:
        self._scheduler = scheduler
        self._front = front
        self._watch = watch

    async def run[T](self, job: Callable[[], T]) -> T:
        """What the job returns; DrainTimedOut if it was not begun, EngineLost if it hangs."""
        self._watch.check()
        future = self._scheduler.submit(job)
        self._front.send(Wake())
        lost = asyncio.create_task(self._watch.until_lost())
        done: asyncio.Future[T] = asyncio.wrap_future(future)
        try:
            await asyncio.wait((done, lost), timeout=JOB_SECONDS, return_when=FIRST_COMPLETED)
            self._watch.check()
            if not done.done():
                self._give_up(future)
            return done.result()
        finally:
            lost.cancel()

    def _give_up(self, future: Future[Any]) -> NoReturn:
        if future.cancel():
            raise DrainTimedOut(
                f"the engine was not idle within {JOB_SECONDS:g} s, "
                f"{self._front.under_way} prompts are under way in it"
            )
        self._watch.lose(f"the scheduler thread hangs in a job of ours ({JOB_SECONDS:g} s)")
        raise EngineLost(self._watch.reason or "the scheduler thread hangs")
