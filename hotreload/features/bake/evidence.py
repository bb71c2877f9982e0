"""The evidence of a bake, and its event: their fields in JSON, and words for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from logging import INFO, WARNING
from typing import Any, TypedDict

from hotreload.events.event import LateEvidence
from hotreload.features.bake.judgement import BAKE, Bake, BakeOutcome, SignalCount
from hotreload.json_fields import Fields, iso, revision_fields
from hotreload.picture.words import AttemptWords, plain
from hotreload.types import Evidence, Revision

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
    return {
        "signal": count.signal,
        "answers": count.hits,
        "low": round(count.low, 6),
        "high": round(count.high, 6),
        "old_answers": count.old_hits,
        "old_low": round(count.old_low, 6),
        "old_high": round(count.old_high, 6),
        "finds": None if count.finds is None else round(count.finds, 6),
    }


def bake_of(facts: Mapping[str, Any]) -> Bake | None:
    """Read the bake in an attempt's fields; None if there is none, or it cannot be read."""
    if not (fields := facts.get("bake")):
        return None
    try:
        return Bake(
            BakeOutcome(fields["outcome"]),
            since=_seconds_of(fields["since"]),
            until=_seconds_of(fields["until"]),
            answers=fields["answers"],
            against=fields["against"],
            old_answers=fields["old_answers"],
            signals=tuple(map(_count_of, fields["signals"])),
            words=fields["reason"] or "",
        )
    except (KeyError, TypeError, ValueError):  # another hotreload may have written it
        return None


def words_of_bake(attempt: Fields, at_length: bool) -> AttemptWords:
    """Say how a bake ended, and why."""
    bake = attempt.get("bake")
    if not bake or not bake["reason"]:
        return AttemptWords()
    return AttemptWords(notes=[f"bake {plain(bake['outcome'])}: {plain(bake['reason'])}"])


def _count_of(fields: Mapping[str, Any]) -> SignalCount:
    new = (fields["answers"], fields["low"], fields["high"])
    old = (fields["old_answers"], fields["old_low"], fields["old_high"])
    return SignalCount(fields["signal"], *new, *old, fields["finds"])


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
