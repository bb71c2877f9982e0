"""The steps that all ranks of an engine take: one table, which rank 0 and the others read.

Rank 0 begins a step; each other rank does its part and votes. To add a step, write a line here, the
follower's part in `StepFollower`, and its begin on rank 0: in `EngineOverRanks` while the engine
runs, in `Lead` before.
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
from hotreload.core.ports import Engine, WeightSets, WeightSwitch
from hotreload.errors import EngineLost
from hotreload.hosts.messages import parse_revision
from hotreload.hosts.vote import Step
from hotreload.types import Checkpoint, Revision, Staged

FIRST_SET = "first"
"""The ranks' name for the weights of their start."""

About = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds that rank 0 waits for the slowest of the others."""

    meet: float
    """Seconds to send its versions and settings."""
    stage: float
    """Seconds to fetch, check and load a checkpoint."""
    prove: float
    """Seconds to compute the answers to the probes."""
    build: float = 900.0
    """Seconds to build its part of the engine."""
    other: float = 60.0
    """Seconds for a step that computes and loads nothing."""


class AfterFailure(Enum):
    """The effect on the other ranks of a step that one rank failed to do."""

    STAYS = auto()
    """The step stays done on the ranks that did it."""
    DROPPED = auto()
    """All others give the step up, and free the weights that they made in it."""
    DROPPED_OR_LOST = auto()
    """As `DROPPED`; but if rank 0 has done the step, the engine is lost: the step cannot be undone,
    and it is unknown which ranks did it."""


type Does = Callable[[StepFollower[Any], Step], Awaitable[Any]]
type Within = Callable[[StepSeconds], float]


@dataclass(frozen=True, slots=True)
class StepKind:
    """One line of the table."""

    name: str
    """The step's name between ranks, and in messages."""
    does: Does
    """A follower's part of the step."""
    within: Within = lambda seconds: seconds.other
    """The longest time of the step."""
    after_failure: AfterFailure = AfterFailure.STAYS
    sends_result: bool = False
    """True if a follower's vote carries the result of its part."""
    before: str | None = None
    after: str | None = None
    """The failpoints of an attempt that a follower passes before and after its part."""


# --- the start: rank 0 has no engine yet --------------------------------------------------------

HELLO = StepKind(
    "hello",
    lambda rank, step: rank.introduce(),
    within=lambda seconds: seconds.meet,
    sends_result=True,
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
    after_failure=AfterFailure.DROPPED,
    sends_result=True,
    after="staged",
)
PROVE = StepKind(
    "prove",
    lambda rank, step: rank.own.unseen.prove(rank.find_set(step)),
    within=lambda seconds: seconds.prove,
    after_failure=AfterFailure.DROPPED,
    before="probing",
    after="proven",
)
FLIP = StepKind(
    "flip",
    lambda rank, step: rank.own.switch.flip(rank.find_set(step)),
    after_failure=AfterFailure.DROPPED_OR_LOST,
    before="swapping",
    after="flipped",
)
EXCHANGE = StepKind(
    "exchange",
    lambda rank, step: rank.own.switch.exchange(rank.find_set(step)),
    after_failure=AfterFailure.DROPPED_OR_LOST,
    before="swapping",
    after="swapped",
)
SCRUB = StepKind(
    "scrub", lambda rank, step: rank.own.switch.scrub(), after_failure=AfterFailure.DROPPED
)
LIVE = StepKind("live", lambda rank, step: rank.record(step.about), before="committed")

# --- what was live, and what is -----------------------------------------------------------------

RETIRE = StepKind("retire", lambda rank, step: rank.retire(step))
RELEASE = StepKind("release", lambda rank, step: rank.free(step))
MEASURE = StepKind(
    "measure", lambda rank, step: rank.own.weights.checksums(), after_failure=AfterFailure.DROPPED
)
FLUSH = StepKind("flush", lambda rank, step: rank.own.switch.flush())
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


class OwnSets(WeightSets, Protocol):
    """One rank's share of the sets of weights."""

    async def checksums(self) -> dict[str, int]:
        """Return the checksum of each live leaf; every rank measures its own share."""


class OwnSwitch(WeightSwitch, Protocol):
    """Changes which weights answer on one rank."""

    async def flush(self) -> int:
        """Drop the cached prefixes that no request under way uses; return their tokens."""


class OwnPart(Engine, Protocol):
    """One rank's part of an engine; each change is made to the parts of all ranks."""

    @property
    def weights(self) -> OwnSets:
        """This rank's share of the weights."""

    @property
    def switch(self) -> OwnSwitch:
        """Changes which of them answer."""

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""

    def withdraw(self, step: int) -> None:
        """Cancel the waiting jobs of this step on all ranks; only rank 0 calls it."""


class StepFollower[Own: OwnPart](ABC):
    """A rank that does rank 0's steps; rank 0 names the sets of weights.

    Its steps without an engine, those of the daemon's start, are in `hosts.life.follower`.
    """

    def __init__(self) -> None:
        self._own: Own | None = None
        self._sets: dict[str, Staged] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def take_over(self, own: Own) -> None:
        """Do later steps with this part of the engine."""
        self._own, self._sets = own, {FIRST_SET: own.weights.live}

    @property
    def own(self) -> Own:
        """This rank's part of the engine."""
        assert self._own is not None, "it is built before anything else is asked of it"
        return self._own

    def find_set(self, step: Step) -> Staged:
        """Return the set of weights that a step names."""
        return self._sets[step.about["set"]]

    async def load(self, step: Step) -> About:
        """Prepare the revision on this host, load this rank's share, return its fingerprint."""
        checkpoint = await self.prepare(parse_revision(step.about))
        staged = self._sets[str(step.number)] = await self.own.weights.stage(checkpoint)
        return {"fingerprint": staged.fingerprint}

    async def retire(self, step: Step) -> None:
        """Begin to retire a set: it ends on all ranks in one turn, and other steps come before."""
        retiring = self.own.switch.retire(self.find_set(step))
        self._ending[step.about["set"]] = asyncio.create_task(retiring)

    async def free(self, step: Step) -> None:
        """Free a set, once it answers no request any more."""
        name = step.about["set"]
        if name in self._ending:
            # The next step may cancel this one: the shielded task goes on, for a later wait.
            await asyncio.shield(self._ending[name])
            del self._ending[name]
        await self.own.weights.release(self._sets[name])
        del self._sets[name]

    async def drop(self, step: Step) -> None:
        """Free the set that was made in a step that rank 0 has given up."""
        staged = self._sets.pop(step.about["set"], None)
        if staged is None:
            return
        if staged is self.own.weights.live:
            raise EngineLost("rank 0 gave up the weights that are live on this rank")
        await self.own.weights.release(staged)

    async def reach(self, point: str) -> None:
        """Pass this failpoint of an attempt."""
        await failpoints.reach(point)

    @abstractmethod
    async def prepare(self, revision: Revision) -> Checkpoint:
        """Fetch a revision and check it, on this host."""

    @abstractmethod
    async def introduce(self) -> About:
        """Return the facts that must be alike on all ranks, before anything is built."""

    @abstractmethod
    async def prepare_start(self, about: About) -> None:
        """Fetch and check the checkpoint that the engine is built from."""

    @abstractmethod
    async def build(self) -> None:
        """Build this rank's part of the engine, while the others build theirs."""

    @abstractmethod
    async def record(self, about: About) -> None:
        """Record the generation that is live on all ranks now."""


# --- the step that a task works for: so each rank names the same jobs alike -----------------------


_CURRENT: ContextVar[Iterator[str]] = ContextVar("step")
"""The names of the step's jobs, in order: unique on this rank, and the same on all ranks."""


@contextmanager
def in_step(step: object) -> Iterator[None]:
    """Let work in this block, and in tasks begun in it, belong to this step."""
    token = _CURRENT.set(f"{step}.{number}" for number in count(1))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def name_next_job() -> str:
    """Return the name of the next job of the step that the current task belongs to."""
    return next(_CURRENT.get())


async def take_part(rank: StepFollower[Any], step: Step) -> About:
    """Do a follower's part of this step; return the result that its vote carries."""
    kind = STEPS[step.name]
    with in_step(step.number):
        if kind.before is not None:
            await rank.reach(kind.before)
        made = await kind.does(rank, step)
        if kind.after is not None:
            await rank.reach(kind.after)
    return made if kind.sends_result else {}
