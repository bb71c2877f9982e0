"""The judgement on weights by what clients are answered by them."""

from dataclasses import dataclass
from enum import StrEnum


class BakeOutcome(StrEnum):
    """The way a bake ended, or stands; also the metric label."""

    BAKING = "baking"
    HELD = "held"
    """Its time is over with too few answers, and it goes on."""
    PROMOTED = "promoted"
    CONVICTED = "convicted"
    INCONCLUSIVE = "inconclusive"
    """There were too few answers: promoted or rolled back, as the operator chose."""
    VOUCHED = "vouched"
    """An operator pinned it, or went back to it: it counts as promoted."""
    LEFT = "left"
    """An operator left it."""
    CUT_SHORT = "cut_short"
    """The daemon was restarted: what a start serves counts as promoted."""


@dataclass(frozen=True, slots=True)
class SignalCount:
    """Answers in which a signal was seen, of new and of old weights, and the shares possible."""

    signal: str
    hits: int
    low: float
    high: float
    old_hits: int
    old_low: float
    old_high: float
    finds: float | None
    """The smallest share in the new weights' answers that would convict them; None if none does."""


@dataclass(frozen=True, slots=True)
class Bake:
    """The judgement on a generation by its clients' answers, after it went live."""

    outcome: BakeOutcome
    since: float
    until: float
    """The end of its time; both are wall-clock seconds."""
    answers: int = 0
    against: int | None = None
    """The number of the generation whose answers it is compared with."""
    old_answers: int = 0
    signals: tuple[SignalCount, ...] = ()
    words: str = ""
    """Words for what came of it."""
