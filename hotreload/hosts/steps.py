"""The steps that all ranks of an engine take: one table, which rank 0 and the others read.

Rank 0 begins a step; each other rank does its part of the step and votes. To add a step: a line
here, the follower's part in `StepFollower`, and its beginning on rank 0 (`OverRanks` while the
engine runs, `Lead` before that).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Any, NoReturn, Protocol

from hotreload import failpoints
from hotreload.core.ports import Engine
from hotreload.errors import EngineLost
from hotreload.hosts.bounds import revision_of
from hotreload.hosts.vote import Step
from hotreload.types import Checkpoint, Revision, Staged

FIRST_SET = "first"
"""The ranks' name for the weights they started with."""

About = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds that rank 0 waits for the slowest of the others."""

    meet: float
    """Seconds for a rank to introduce itself."""
    stage: float
    """To fetch, check and load a checkpoint."""
    prove: float
    """To compute the answers to the probes."""
    build: float = 900.0
    """To build its part of the engine."""
    other: float = 60.0
    """For what computes and loads nothing."""


class InVain(Enum):
    """Fate of a step that one rank did not do."""

    STAYS = auto()
    """Ranks that did it have done it."""
    DROPPED = auto()
    """All others give it up, and free what they made in it."""
    DROPPED_OR_LOST = auto()
    """As `DROPPED`, but once rank 0 has done the step the engine is lost: the step cannot be
    undone, and it is unknown which ranks did it."""


type Does = Callable[[StepFollower[Any], Step], Awaitable[Any]]
type Within = Callable[[StepSeconds], float]


@dataclass(frozen=True, slots=True)
class StepKind:
    """One line of the table."""

    name: str
    """The ranks' name for it to each other, and in messages."""
    does: Does
    """A follower's part of it."""
    within: Within = lambda seconds: seconds.other
    """Time that it may take."""
    in_vain: InVain = InVain.STAYS
    tells: bool = False
    """True if what a follower made of it goes with its vote."""
    before: str | None = None
    after: str | None = None
    """The failpoints of an attempt that a follower passes in it."""


# --- the start: rank 0 has no engine yet --------------------------------------------------------

HELLO = StepKind(
    "hello",
    lambda rank, step: rank.introduce(),
    within=lambda seconds: seconds.meet,
    tells=True,
)
PREPARE = StepKind(
    "prepare",
    lambda rank, step: rank.prepare_start(step.about),
    within=lambda seconds: seconds.stage,
)
BUILD = StepKind(
    "build",
    lambda rank, step: rank.build(),
    within=lambda seconds: seconds.build,
)

# --- new weights --------------------------------------------------------------------------------

STAGE = StepKind(
    "stage",
    lambda rank, step: rank.load(step),
    within=lambda seconds: seconds.stage,
    in_vain=InVain.DROPPED,
    tells=True,
    after="staged",
)
PROVE = StepKind(
    "prove",
    lambda rank, step: rank.own.prove(rank.set_of(step)),
    within=lambda seconds: seconds.prove,
    in_vain=InVain.DROPPED,
    before="probing",
    after="proven",
)
FLIP = StepKind(
    "flip",
    lambda rank, step: rank.own.flip(rank.set_of(step)),
    in_vain=InVain.DROPPED_OR_LOST,
    before="swapping",
    after="flipped",
)
EXCHANGE = StepKind(
    "exchange",
    lambda rank, step: rank.own.exchange(rank.set_of(step)),
    in_vain=InVain.DROPPED_OR_LOST,
    before="swapping",
    after="swapped",
)
SCRUB = StepKind("scrub", lambda rank, step: rank.own.scrub(), in_vain=InVain.DROPPED)
LIVE = StepKind("live", lambda rank, step: rank.record(step.about), before="committed")

# --- what was live, and what is -----------------------------------------------------------------

RETIRE = StepKind("retire", lambda rank, step: rank.let_end(step))
RELEASE = StepKind("release", lambda rank, step: rank.free(step))
MEASURE = StepKind("measure", lambda rank, step: rank.own.checksums(), in_vain=InVain.DROPPED)
FLUSH = StepKind("flush", lambda rank, step: rank.own.flush())
DROP = StepKind("drop", lambda rank, step: rank.drop(step))

STEPS = {
    kind.name: kind
    for kind in (
        *(HELLO, PREPARE, BUILD),
        *(STAGE, PROVE, FLIP, EXCHANGE, SCRUB, LIVE),
        *(RETIRE, RELEASE, MEASURE, FLUSH, DROP),
    )
}


# --- a follower: it decides nothing, and does each step to its own part ---------------------------


class OwnPart(Engine, Protocol):
    """One rank's part of an engine: all ranks are asked the same of theirs."""

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each leaf that is live, of which every rank measures its own."""
        ...

    async def flush(self) -> int:
        """Forget the cached prefixes that nothing under way uses; count their tokens."""
        ...

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that it died or hangs."""
        ...

    def withdraw(self, step: int) -> None:
        """Let no rank wait any more to do its part of this step; rank 0 alone asks."""
        ...


class StepFollower[Own: OwnPart](ABC):
    """A rank that follows; the sets of weights have the names that rank 0 gives them.

    What it does without an engine belongs to the life of a daemon: `hosts.life.follow` has it.
    """

    def __init__(self) -> None:
        self._own: Own | None = None
        self._sets: dict[str, Staged] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def take_over(self, own: Own) -> None:
        """Follow with this part of the engine from now on."""
        self._own, self._sets = own, {FIRST_SET: own.live}

    @property
    def own(self) -> Own:
        """This rank's part of the engine."""
        assert self._own is not None, "it is built before anything else is asked of it"
        return self._own

    def set_of(self, step: Step) -> Staged:
        """The set that a step is about."""
        return self._sets[step.about["set"]]

    async def load(self, step: Step) -> About:
        """Load this rank's share of the revision, which it prepares by itself."""
        checkpoint = await self.prepare(revision_of(step.about))
        staged = self._sets[str(step.number)] = await self.own.stage(checkpoint)
        return {"fingerprint": staged.fingerprint}

    async def let_end(self, step: Step) -> None:
        """Rank 0 waits for the end, which comes to all in one turn; steps follow meanwhile."""
        retiring = self.own.retire(self.set_of(step))
        self._ending[step.about["set"]] = asyncio.create_task(retiring)

    async def free(self, step: Step) -> None:
        """Free the set, once no request is answered by it any more."""
        name = step.about["set"]
        if name in self._ending:
            # The next step may end this one: what ends goes on, and can be waited for again.
            await asyncio.shield(self._ending[name])
            del self._ending[name]
        await self.own.release(self._sets[name])
        del self._sets[name]

    async def drop(self, step: Step) -> None:
        """Free what was made in a step that was given up; being done, it ended when this came."""
        staged = self._sets.pop(step.about["set"], None)
        if staged is None:
            return
        if staged is self.own.live:
            raise EngineLost("rank 0 gave up what is live here")
        await self.own.release(staged)

    async def reach(self, point: str) -> None:
        """Pass this failpoint of an attempt."""
        await failpoints.reach(point)

    @abstractmethod
    async def prepare(self, revision: Revision) -> Checkpoint:
        """Fetch a revision and check it, on this host."""

    @abstractmethod
    async def introduce(self) -> About:
        """Say what must be alike on all ranks, before anything is built."""

    @abstractmethod
    async def prepare_start(self, about: About) -> None:
        """Fetch and check what the engine is to be built from."""

    @abstractmethod
    async def build(self) -> None:
        """Build this rank's part of the engine, while the others build theirs."""

    @abstractmethod
    async def record(self, about: About) -> None:
        """Record the generation that is live on all ranks now."""


# --- the step that a task works for: so each rank names the same jobs alike -----------------------


class StepNames:
    """Gives names to the sets made for one step, in their order."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._numbers = count(1)

    def next(self) -> str:
        """A name that no other job of this rank has, and the same job of all others."""
        return f"{self._step}.{next(self._numbers)}"


_CURRENT: ContextVar[StepNames] = ContextVar("step")


@contextmanager
def in_step(step: object) -> Iterator[None]:
    """Count work in this block, and the tasks that begin in it, to this step."""
    token = _CURRENT.set(StepNames(str(step)))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def next_job() -> str:
    """The name of the next job of the step that the current task works for."""
    return _CURRENT.get().next()


async def take_part(rank: StepFollower[Any], step: Step) -> About:
    """Do a follower's part of this step; the result goes with its vote."""
    kind = STEPS[step.name]
    with in_step(step.number):
        if kind.before is not None:
            await rank.reach(kind.before)
        made = await kind.does(rank, step)
        if kind.after is not None:
            await rank.reach(kind.after)
    return made if kind.tells else {}
