"""Runs jobs of ours on the scheduler's own thread, when the event loop asks for them."""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol

from hotreload.engine.upstream.thread.scheduler import SchedulerThread, Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.errors import DrainTimedOut, EngineLost

JOB_SECONDS = 10.0
"""Time the scheduler thread may take to become idle and do a job of ours between two steps."""


class Front(Protocol):
    """Hands requests to the scheduler thread: `Answers` does."""

    @property
    def under_way(self) -> int:
        """Number of prompts that the engine is busy with."""
        ...

    def send(self, message: Any) -> None:
        """Send a message to the scheduler thread."""
        ...


class BetweenSteps:
    """Runs a job once nothing runs or waits in the engine; a loss or a time limit ends the wait."""

    def __init__(self, scheduler: SchedulerThread, front: Front, watch: EngineWatch) -> None:
        self._scheduler = scheduler
        self._front = front
        self._watch = watch

    async def run[T](self, job: Callable[[], T]) -> T:
        """The job's result; DrainTimedOut if the job never began, EngineLost if it hangs."""
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

    async def at_a_turn[T](self, job: Callable[[], T]) -> T:
        """The job's result, done at the next turn whatever runs; EngineLost if none comes."""
        self._watch.check()
        future = self._scheduler.submit_at_a_turn(job)
        self._front.send(Wake())
        return await self.until_lost(future)

    @asynccontextmanager
    async def standing_still(self, first: Callable[[], None]) -> AsyncIterator[None]:
        """Nothing is computed while this is open; it begins, with `first`, as a job of `run`."""

        def stop() -> None:
            first()
            self._scheduler.stand_still()

        try:
            await self.run(stop)
            yield
        finally:
            self._scheduler.go_on()

    async def until_lost[T](self, future: Future[T]) -> T:
        """Return what the scheduler thread promised; EngineLost when the engine is lost before."""
        return await self._before_loss(asyncio.wrap_future(future))

    async def unless_lost[T](self, awaited: Awaitable[T]) -> T:
        """Return the work's result; EngineLost, and it is cancelled, when the engine is lost."""
        work = asyncio.ensure_future(awaited)
        try:
            return await self._before_loss(work)
        finally:
            work.cancel()

    async def _before_loss[T](self, done: asyncio.Future[T]) -> T:
        lost = asyncio.create_task(self._watch.until_lost())
        try:
            await asyncio.wait((done, lost), return_when=FIRST_COMPLETED)
            self._watch.check()
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
