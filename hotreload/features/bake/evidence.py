"""The judgement of a bake as data, in JSON, in words, as evidence and as an event."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from logging import INFO, WARNING
from typing import Any, TypedDict

from hotreload.attempts import Evidence
from hotreload.events.event import LateEvidence
from hotreload.features.bake.signals import Signal
from hotreload.figures import percent
from hotreload.json_fields import Fields, iso, revision_fields
from hotreload.picture.words import AttemptWords, plain
from hotreload.types import Reason, Revision

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
    answers: int
    low: float
    high: float
    old_answers: int
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
        f"{SAID[each.signal]} from {percent(_share(each.old_answers, bake.old_answers))} "
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
    new = f"{count.answers} of {bake.answers} ({percent(count.low)} to {percent(count.high)})"
    old = f"{count.old_answers} of {bake.old_answers}"
    return (
        f"{SAID[count.signal]} {new}, before {old} "
        f"({percent(count.old_low)} to {percent(count.old_high)})"
    )


def _share(hits: int, answers: int) -> float:
    return hits / answers if answers else 0.0


CONVICTED_ANSWERS = "convicted_answers"
"""The trouble that convicted weights cannot be left."""
BLANK = Evidence(BAKE, facts={"bake": None})
"""The evidence where none was begun."""


class BakeFields(TypedDict):
    """The judgement on a generation by its clients' answers; shares are 0 to 1."""

    outcome: str
    since: str
    until: str
    answers: int
    against: int | None
    old_answers: int
    reason: str | None
    signals: list[Fields]


def bake_fields(bake: Bake) -> BakeFields:
    """Return the fields of a bake."""
    return {
        "outcome": bake.outcome.value,
        "since": iso(bake.since),
        "until": iso(bake.until),
        "answers": bake.answers,
        "against": bake.against,
        "old_answers": bake.old_answers,
        "reason": bake.words or None,
        "signals": [_signal_fields(each) for each in bake.signals],
    }


def _signal_fields(count: SignalCount) -> Fields:
    found = asdict(count)
    return {name: round(v, 6) if isinstance(v, float) else v for name, v in found.items()}


def bake_of(facts: Mapping[str, Any]) -> Bake | None:
    """Read the bake in an attempt's fields; None if there is none, or it cannot be read."""
    if not (found := facts.get("bake")):
        return None
    try:
        return Bake(
            BakeOutcome(found["outcome"]),
            since=_seconds_of(found["since"]),
            until=_seconds_of(found["until"]),
            answers=found["answers"],
            against=found["against"],
            old_answers=found["old_answers"],
            signals=tuple(map(_count_of, found["signals"])),
            words=found["reason"] or "",
        )
    except (KeyError, TypeError, ValueError):  # another hotreload may have written it
        return None


def words_of_bake(attempt: Fields, at_length: bool) -> AttemptWords:
    """Say how a bake ended, and why."""
    bake = attempt.get("bake")
    if not bake or not bake["reason"]:
        return AttemptWords()
    return AttemptWords(notes=[f"bake {plain(bake['outcome'])}: {plain(bake['reason'])}"])


def _count_of(found: Mapping[str, Any]) -> SignalCount:
    return SignalCount(**{each.name: found[each.name] for each in fields(SignalCount)})


def _seconds_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


NOT_PROMOTED = {
    BakeOutcome.CONVICTED: "nothing at once: where it was live, hotreload goes back by itself and "
    "refuses it; look at the training run, and at `signals` for what its answers did",
    BakeOutcome.INCONCLUSIVE: "raise [bake] time, or [bake] max_time: it had too few answers",
}


@dataclass(frozen=True, slots=True)
class BakeChanged(LateEvidence):
    """A bake began, goes on beyond its time, or is over."""

    generation: int
    revision: Revision
    bake: Bake

    @property
    def name(self) -> str:
        begins = self.bake.outcome is BakeOutcome.BAKING
        return "bake.began" if begins else f"bake.{self.bake.outcome}"

    @property
    def level(self) -> int:
        return WARNING if self.bake.outcome in NOT_PROMOTED else INFO

    @property
    def todo(self) -> str:
        return NOT_PROMOTED.get(self.bake.outcome, "")

    @property
    def evidence(self) -> Evidence:
        outcome, why = self.bake.outcome.value, self.bake.words
        words = f"bake {outcome}: {why}" if why else ""
        return Evidence(BAKE, outcome, words, {"bake": bake_fields(self.bake)})

    def fields(self) -> Fields:
        added = {**revision_fields(self.revision), **bake_fields(self.bake)}
        return {"generation": self.generation, **added}
