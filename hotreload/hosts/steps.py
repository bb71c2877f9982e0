"""The steps that all ranks of an engine take: one table, which rank 0 and the others read.

Rank 0 begins a step, each other rank does its part of it and votes. To add one: a line here, what
a follower does for it in `Following`, and who begins it on rank 0 (`OverRanks` while the engine
runs, `Lead` before there is one).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hotreload.hosts.ballots import Step
from hotreload.hosts.following import About, Following
from hotreload.hosts.naming import in_step


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds that rank 0 waits for the slowest of the others."""

    meet: float
    """To say who it is."""
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
    """As `DROPPED`, but the engine is lost once it is done on rank 0: it cannot be undone, and
    nobody knows what the others did."""


type Does = Callable[[Following[Any], Step], Awaitable[Any]]
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
DROP = StepKind("drop", lambda rank, step: rank.drop(step))

STEPS = {
    kind.name: kind
    for kind in (
        *(HELLO, PREPARE, BUILD),
        *(STAGE, PROVE, FLIP, EXCHANGE, SCRUB, LIVE),
        *(RETIRE, RELEASE, MEASURE, DROP),
    )
}


async def take_part(rank: Following[Any], step: Step) -> About:
    """Do what a follower does at this step; what it made is told with its vote."""
    kind = STEPS[step.name]
    with in_step(step.number):
        if kind.before is not None:
            await rank.reach(kind.before)
        made = await kind.does(rank, step)
        if kind.after is not None:
            await rank.reach(kind.after)
    return made if kind.tells else {}
