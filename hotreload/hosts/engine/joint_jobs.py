"""Runs jobs on the scheduler threads of all ranks in the same turn; merges their measurements."""

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
from hotreload.hosts.messages import InvalidMessage, MessageReader, parse_bounded, parse_number
from hotreload.hosts.steps import name_next_job
from hotreload.hosts.upstream.ranks import Ranks, Store
from hotreload.hosts.upstream.turns import Turns
from hotreload.threads import in_thread

MEET_SECONDS = 60.0
"""The longest wait for the slowest rank to have a job ready."""
MOST_MESSAGE = 64 << 20
"""The most characters of a rank's measurements; a leaf takes a hundred."""
MOST_SUM = 2**64 - 1
KEPT_MESSAGES = 64
"""The number of a rank's last messages in the store; all ranks have read the earlier ones."""


def turns_of(scheduler: SchedulerThread) -> Turns:
    """Return the turns of this rank's scheduler, which are those of all ranks."""
    assert isinstance(scheduler.turns, Turns), "there are several ranks"
    return scheduler.turns


class MeetingPlace:
    """A place where ranks exchange messages, each under a name."""

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self._store = store
        self._reader = MessageReader(store)
        self._ranks = ranks
        self._sent: deque[str] = deque()
        self.within = MEET_SECONDS
        """The longest wait for the slowest rank's message."""

    def send(self, name: str, text: str = "") -> None:
        """Send a message to the others; blocks for a moment."""
        key = _key(name, self._ranks.own)
        self._store.put(key, text)
        self._sent.append(key)
        if len(self._sent) > KEPT_MESSAGES:
            self._store.forget(self._sent.popleft())

    async def receive_all(self, name: str, read: Callable[[str], Any] = str) -> list[Any]:
        """Return the messages of all others, by rank; TryAgain names a rank that sent none."""
        until = time.monotonic() + self.within
        return [await self._receive(rank, name, read, until) for rank in self._ranks.others]

    async def _receive(self, rank: int, name: str, read: Callable[[str], Any], until: float) -> Any:
        message = await self._reader.receive(_key(name, rank), read, until - time.monotonic())
        if message is None:
            raise TryAgain(f"rank {rank} has not come to `{name}` in time", code="late_rank")
        return message


class BetweenStepsOfAll(BetweenSteps):
    """Runs jobs between the steps of an engine of several ranks; each rank calls the same jobs.

    Once a job is ready on every rank, rank 0 orders it, and all ranks do it in one turn.
    """

    def __init__(
        self, scheduler: SchedulerThread, front: Front, watch: EngineWatch, meeting: MeetingPlace
    ) -> None:
        super().__init__(scheduler, front, watch)
        self._meeting = meeting

    async def run[T](self, job: Callable[[], T]) -> T:
        """Run the job once the engine is idle, and return its result; DrainTimedOut if never."""
        is_idle = self._scheduler.has_nothing_to_do
        return await self._run_on_all(job, is_idle, JOB_SECONDS if self._turns.leads else None)

    async def at_a_turn[T](self, job: Callable[[], T]) -> T:
        """Run the job at the next turn, idle or not, and return its result."""
        return await self._run_on_all(job, lambda: True, None)

    @property
    def _turns(self) -> Turns:
        return turns_of(self._scheduler)

    async def _run_on_all[T](
        self, job: Callable[[], T], may_be_done: Callable[[], bool], within: float | None
    ) -> T:
        self._watch.check()
        name = name_next_job()
        done = self._turns.make_ready(name, job)
        try:
            await in_thread(lambda cancel: self._meeting.send(name))
            if self._turns.leads:
                await self.unless_lost(self._meeting.receive_all(name))
                self._turns.order(name, may_be_done)
                self._front.send(Wake())
            return await self._wait_for(name, done, within)
        except BaseException:
            self._turns.take_back(name)
            raise

    async def _wait_for[T](self, name: str, done: Future[T], within: float | None) -> T:
        result: asyncio.Future[T] = asyncio.wrap_future(done)
        lost = asyncio.create_task(self._watch.until_lost())
        try:
            await asyncio.wait((result, lost), timeout=within, return_when=FIRST_COMPLETED)
            self._watch.check()
            if not result.done():
                self._give_up_late(name)
            return result.result()
        finally:
            lost.cancel()

    def _give_up_late(self, name: str) -> NoReturn:
        if self._turns.take_back(name):
            raise DrainTimedOut(f"the engine was not idle within {JOB_SECONDS:g} s")
        self._watch.lose(f"the scheduler thread hangs in a job of ours ({JOB_SECONDS:g} s)")
        raise EngineLost(self._watch.reason or "the scheduler thread hangs")


async def gather(
    meeting: MeetingPlace, name: str, own: Any, read: Callable[[Any], Any] = lambda message: message
) -> list[Any]:
    """Return each rank's value of this name, as JSON, this rank's first; every rank calls it."""
    text = json.dumps(own)
    await in_thread(lambda cancel: meeting.send(name, text))
    others = await meeting.receive_all(name, lambda text: read(parse_bounded(text, MOST_MESSAGE)))
    return [read(json.loads(text)), *others]


async def merge_measurements(meeting: MeetingPlace, name: str, own: Measured) -> Measured:
    """Return the measurements of a set, added up over all ranks; every rank must call this."""
    sums: Mapping[str, Any] = {path: dict(each) for path, each in own.sums.items()}
    return add_up_measures(await gather(meeting, name, [sums, dict(own.rms)], _read_measured))


def _read_measured(message: Any) -> Measured:
    try:
        sums, rms = message
        return Measured(
            {
                path: {name: parse_number(one, most=MOST_SUM) for name, one in each.items()}
                for path, each in sums.items()
            },
            {path: float(one) for path, one in rms.items()},
        )
    except (TypeError, ValueError, AttributeError) as fault:
        raise InvalidMessage("it is not what a rank measures") from fault


def _key(name: str, rank: int) -> str:
    return f"hotreload/meet/{name}/{rank}"
