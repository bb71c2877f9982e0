"""The other processes of one engine, from the moment they have met until this process leaves.

Their messages go through a store that any process of the network may write to: each message is
signed. A signature holds for one key in one life of the engine, and no message can be replayed
under another key or later. A value without a valid signature counts as missing. An attacker can
therefore delay messages between ranks, and cannot make a rank do anything.

All ranks run a job on their scheduler threads in the same turn, and merge what they measure.
"""

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import time
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

from hotreload.engine.upstream.thread.between import JOB_SECONDS, BetweenSteps, Front
from hotreload.engine.upstream.thread.scheduler import SchedulerThread, Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.leaf.measures import Measured, add_up_measures
from hotreload.errors import DeviceUnavailable, DrainTimedOut, EngineLost, TryAgain
from hotreload.hosts.messages import (
    Doubts,
    InvalidMessage,
    MessageReader,
    parse_bounded,
    parse_number,
    parse_text,
)
from hotreload.hosts.steps import name_next_job
from hotreload.hosts.upstream.ranks import Ranks, Store, join, leave
from hotreload.hosts.upstream.turns import Turns
from hotreload.threads import in_thread

UNSIGNED_SECONDS = 0.05
"""Seconds until a value without a valid signature is read again: it may be overwritten."""
NONCE_BYTES = 16
BEFORE_LIFE = "joining"


class SignedStore(Store):
    """A store that signs its values, around one that any process can write to."""

    def __init__(self, store: Store, secret: str, life: str) -> None:
        """`life` is a text that no other life of the engine has."""
        self._store = store
        self._secret = secret.encode()
        self._life = life
        self._doubts = Doubts()

    def put(self, key: str, value: str) -> None:
        """Write this value under the key; ranks that wait for the key get it."""
        self._store.put(key, f"{self._signature(key, value)} {value}")

    def get(self, key: str, within: float) -> str | None:
        """Return the value that a rank of this life wrote; None if none comes within the time."""
        until = time.monotonic() + within
        while (text := self._store.get(key, max(until - time.monotonic(), 0.001))) is not None:
            signature, _, value = text.partition(" ")
            if hmac.compare_digest(signature.encode(), self._signature(key, value).encode()):
                return value
            self._doubts.log_once(key, "no rank of this life has signed it")
            if (left := until - time.monotonic()) <= 0:
                return None
            time.sleep(min(left, UNSIGNED_SECONDS))
        return None

    def forget(self, key: str) -> None:
        """Delete the key, and every key below it (after a slash)."""
        self._store.forget(key)

    def _signature(self, key: str, value: str) -> str:
        signed = "".join(f"{len(each)}:{each}" for each in (self._life, key, value))
        data = signed.encode(errors="surrogatepass")
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()


async def sign_for_this_life(
    store: Store, secret: str, own: int, others: Iterable[int], within: float
) -> SignedStore:
    """Return a store signed for this life alone: by a random number of each rank.

    Each rank trusts its own number. DeviceUnavailable names a rank that does not know the secret.
    """
    joining = SignedStore(store, secret, BEFORE_LIFE)
    reader = MessageReader(joining)
    drawn = {own: secrets.token_hex(NONCE_BYTES)}
    joining.put(_key(own), drawn[own])
    for rank in others:
        theirs = await reader.receive(_key(rank), _nonce, within)
        if theirs is None:
            raise DeviceUnavailable(
                f"rank {rank} has not shown within {within:g} s that it knows the secret: compare "
                "[engine] join_secret_file by `hotreload doctor --meet` on all hosts"
            )
        drawn[rank] = theirs
    return SignedStore(store, secret, " ".join(drawn[rank] for rank in sorted(drawn)))


def _nonce(text: str) -> str:
    if len(text) != 2 * NONCE_BYTES:
        raise InvalidMessage("it is no number that a rank has drawn")
    return parse_text(text)


def _key(rank: int) -> str:
    return f"hotreload/life/{rank}"


LIFE_SECONDS = 60.0
"""The longest wait, after all ranks have met, for a rank to prove that it knows the secret."""


class JoinedRanks:
    """The ranks of one engine that have met, and their store; made by `join` on every rank."""

    def __init__(self, ranks: Ranks, store: Store) -> None:
        self.ranks = ranks
        self.store = store
        self.meeting = MeetingPlace(store, ranks)
        self._builds = 0

    @classmethod
    async def join(cls, ranks: Ranks, within: float) -> "JoinedRanks":
        """Meet the others; DeviceUnavailable if they do not come within so many seconds.

        Call it before anything looks for devices. With jax 0.10.2 the process is aborted instead.
        """
        seconds = max(1, math.ceil(within))
        waiting = "the wait for the other ranks"  # no cancel ends it
        await in_thread(
            lambda cancel: join(ranks, seconds),
            discard=lambda joined: leave(),
            leave_as=waiting,
            is_read=False,
        )
        store = Store()
        if ranks.secret is None:
            return cls(ranks, store)
        others = ranks.others
        signed = sign_for_this_life(store, ranks.secret, ranks.own, others, LIFE_SECONDS)
        return cls(ranks, await signed)

    def next_build(self) -> str:
        """Return the name of the next engine; all ranks call it for each build."""
        self._builds += 1
        return f"build {self._builds}"

    async def leave(self) -> None:
        """Leave the others, and wait a while for them to leave too."""
        await asyncio.to_thread(leave)


# --- jobs in the same turn ------------------------------------------------------------------------

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
        key = _meeting_key(name, self._ranks.own)
        self._store.put(key, text)
        self._sent.append(key)
        if len(self._sent) > KEPT_MESSAGES:
            self._store.forget(self._sent.popleft())

    async def receive_all(self, name: str, read: Callable[[str], Any] = str) -> list[Any]:
        """Return the messages of all others, by rank; TryAgain names a rank that sent none."""
        until = time.monotonic() + self.within
        return [await self._receive(rank, name, read, until) for rank in self._ranks.others]

    async def _receive(self, rank: int, name: str, read: Callable[[str], Any], until: float) -> Any:
        message = await self._reader.receive(
            _meeting_key(name, rank), read, until - time.monotonic()
        )
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


def _meeting_key(name: str, rank: int) -> str:
    return f"hotreload/meet/{name}/{rank}"
