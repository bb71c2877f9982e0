"""The judgement on weights by what clients are answered by them, and words for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hotreload.features.bake.signals import Signal
from hotreload.figures import percent
from hotreload.types import Reason

BAKE = "bake"
"""The name of its evidence, the verb of what it does, and the code of its refusals."""


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
    """Counts of a signal in answers of new and of old weights, and the possible shares."""

    signal: str
    hits: int
    low: float
    high: float
    old_hits: int
    old_low: float
    old_high: float
    finds: float | None
    """The smallest share of answers that would convict the new weights; None without one."""


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
    """The outcome in words."""


SAID: dict[str, str] = {
    Signal.ERROR: "errors",
    Signal.EMPTY: "empty answers",
    Signal.LENGTH: "answers without a stop",
    Signal.REPETITION: "answers that repeat themselves",
    Signal.LONG: "long answers",
}


def convicted_words(bake: Bake, found: Iterable[Signal]) -> str:
    """Say by which signals new weights are worse, with both intervals."""
    signals = {each.value for each in found}
    worse = "; ".join(_beside(bake, each) for each in bake.signals if each.signal in signals)
    return f"its answers are worse than those of {_against(bake)}: {worse}"


def refusal_of(bake: Bake) -> Reason:
    """Make the reason to refuse the weights, with a line for each signal."""
    return Reason(BAKE, bake.words, tuple(_beside(bake, each) for each in bake.signals))


def promoted_words(bake: Bake) -> str:
    """Name the smallest increase that would have been found."""
    finds = [
        f"{SAID[each.signal]} from {percent(_share(each.old_hits, bake.old_answers))} "
        f"to {percent(each.finds)}"
        for each in bake.signals
        if each.finds is not None
    ]
    return f"{_answers(bake)} are no worse; found would have been: {', '.join(finds)}"


def too_few_words(bake: Bake, then: str) -> str:
    """Say that there were too few answers to judge, and what follows."""
    return f"{_answers(bake)} are too few to tell anything; {then}"


def _answers(bake: Bake) -> str:
    return f"{bake.answers} answers beside {bake.old_answers} of {_against(bake)}"


def _against(bake: Bake) -> str:
    return f"generation {bake.against}"


def _beside(bake: Bake, count: SignalCount) -> str:
    new = f"{count.hits} of {bake.answers} ({percent(count.low)} to {percent(count.high)})"
    old = f"{count.old_hits} of {bake.old_answers}"
    return (
        f"{SAID[count.signal]} {new}, before {old} "
        f"({percent(count.old_low)} to {percent(count.old_high)})"
    )


def _share(hits: int, answers: int) -> float:
    return hits / answers if answers else 0.0
