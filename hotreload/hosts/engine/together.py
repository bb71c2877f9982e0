"""Runs jobs on the scheduler threads of all ranks in the same turn; adds up what each measured."""

import asyncio
import json
import time
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

from hotreload.engine.upstream.thread.between import JOB_SECONDS, BetweenSteps, Front
from hotreload.engine.upstream.thread.scheduler import SchedulerThread, Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.measures import Measured, add_up_measures
from hotreload.errors import DrainTimedOut, EngineLost, TryAgain
from hotreload.hosts.bounds import NotBelieved, number, parse_bounded
from hotreload.hosts.message_reader import MessageReader
from hotreload.hosts.steps import next_job
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.upstream.store import Store
from hotreload.hosts.upstream.turns import Turns
from hotreload.threads import in_thread

MEET_SECONDS = 60.0
"""Time until the slowest rank has a job ready that the others have."""
MOST_TOLD = 64 << 20
"""Characters of what a rank measured; a leaf takes a hundred."""
MOST_SUM = 2**64 - 1
KEPT_TELLINGS = 64
"""Count of a rank's last messages that the store keeps: all ranks have read earlier ones."""


def turns_of(scheduler: SchedulerThread) -> Turns:
    """The turns of this rank's scheduler, which it takes as all do."""
    assert isinstance(scheduler.turns, Turns), "there are several ranks"
    return scheduler.turns


class MeetingPlace:
    """A place where ranks exchange messages, each under a name."""

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self._store = store
        self._ear = MessageReader(store)
        self._ranks = ranks
        self._told: deque[str] = deque()
        self.within = MEET_SECONDS
        """Seconds until the slowest rank sends its message."""

    def tell(self, name: str, text: str = "") -> None:
        """Send a message to the others; blocks for a moment."""
        key = _key(name, self._ranks.own)
        self._store.put(key, text)
        self._told.append(key)
        if len(self._told) > KEPT_TELLINGS:
            self._store.forget(self._told.popleft())

    async def receive_all(self, name: str, read: Callable[[str], Any] = str) -> list[Any]:
        """Receive the messages of all others, by rank; TryAgain names the ranks without one."""
        until = time.monotonic() + self.within
        return [await self._of(rank, name, read, until) for rank in self._ranks.others]

    async def _of(self, rank: int, name: str, read: Callable[[str], Any], until: float) -> Any:
        told = await self._ear.receive(_key(name, rank), read, until - time.monotonic())
        if told is None:
            raise TryAgain(f"rank {rank} has not come to `{name}` in time", code="late_rank")
        return told


class BetweenStepsOfAll(BetweenSteps):
    """Runs jobs in an engine of several ranks: each rank asks for the same ones, step by step.

    A job is done when every rank has asked for it; rank 0 says when, and all do it in one turn.
    """

    def __init__(
        self, scheduler: SchedulerThread, front: Front, watch: EngineWatch, meeting: MeetingPlace
    ) -> None:
        super().__init__(scheduler, front, watch)
        self._meeting = meeting

    async def run[T](self, job: Callable[[], T]) -> T:
        """The job's result, done once nothing runs or waits; DrainTimedOut if it never began."""
        is_idle = self._scheduler.has_nothing_to_do
        return await self._by_all(job, is_idle, JOB_SECONDS if self._turns.leads else None)

    async def at_a_turn[T](self, job: Callable[[], T]) -> T:
        """The job's result, done at the next turn whatever runs."""
        return await self._by_all(job, lambda: True, None)

    @property
    def _turns(self) -> Turns:
        return turns_of(self._scheduler)

    async def _by_all[T](
        self, job: Callable[[], T], may_be_done: Callable[[], bool], within: float | None
    ) -> T:
        self._watch.check()
        name = next_job()
        done = self._turns.make_ready(name, job)
        try:
            await in_thread(lambda cancel: self._meeting.tell(name))
            if self._turns.leads:
                await self.unless_lost(self._meeting.receive_all(name))
                self._turns.order(name, may_be_done)
                self._front.send(Wake())
            return await self._in_time(name, done, within)
        except BaseException:
            self._turns.take_back(name)
            raise

    async def _in_time[T](self, name: str, done: Future[T], within: float | None) -> T:
        result: asyncio.Future[T] = asyncio.wrap_future(done)
        lost = asyncio.create_task(self._watch.until_lost())
        try:
            await asyncio.wait((result, lost), timeout=within, return_when=FIRST_COMPLETED)
            self._watch.check()
            if not result.done():
                self._too_late(name)
            return result.result()
        finally:
            lost.cancel()

    def _too_late(self, name: str) -> NoReturn:
        if self._turns.take_back(name):
            raise DrainTimedOut(f"the engine was not idle within {JOB_SECONDS:g} s")
        self._watch.lose(f"the scheduler thread hangs in a job of ours ({JOB_SECONDS:g} s)")
        raise EngineLost(self._watch.reason or "the scheduler thread hangs")


async def gather(
    meeting: MeetingPlace, name: str, own: Any, read: Callable[[Any], Any] = lambda told: told
) -> list[Any]:
    """Gather what each rank says of the same, as JSON has it, this one's first; every rank asks."""
    text = json.dumps(own)
    await in_thread(lambda cancel: meeting.tell(name, text))
    said = await meeting.receive_all(name, lambda text: read(parse_bounded(text, MOST_TOLD)))
    return [read(json.loads(text)), *said]


async def merge_measurements(meeting: MeetingPlace, name: str, own: Measured) -> Measured:
    """Add up the measurements of a set over all ranks; every rank must call this."""
    sums: Mapping[str, Any] = {path: dict(each) for path, each in own.sums.items()}
    return add_up_measures(await gather(meeting, name, [sums, dict(own.rms)], _read_measured))


def _read_measured(told: Any) -> Measured:
    try:
        sums, rms = told
        return Measured(
            {
                path: {name: number(one, most=MOST_SUM) for name, one in each.items()}
                for path, each in sums.items()
            },
            {path: float(one) for path, one in rms.items()},
        )
    except (TypeError, ValueError, AttributeError) as fault:
        raise NotBelieved("it is not what a rank measures") from fault


def _key(name: str, rank: int) -> str:
    return f"hotreload/meet/{name}/{rank}"
