"""The evidence of a bake; `BakeTold` has that of one under way."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hotreload.judgements import Bake, BakeOutcome, SignalCount
from hotreload.types import BAKE, Evidence

BLANK = Evidence(BAKE, facts={"bake": None})
"""The evidence where none was begun."""


def bake_of(facts: Mapping[str, Any]) -> Bake | None:
    """Read back the bake that an attempt tells of; None if it tells of none that can be read."""
    if not (told := facts.get("bake")):
        return None
    try:
        return Bake(
            BakeOutcome(told["outcome"]),
            since=_seconds_of(told["since"]),
            until=_seconds_of(told["until"]),
            answers=told["answers"],
            against=told["against"],
            old_answers=told["old_answers"],
            signals=tuple(map(_count_of, told["signals"])),
            words=told["reason"] or "",
        )
    except (KeyError, TypeError, ValueError):  # another hotreload may have written it
        return None


def _count_of(told: Mapping[str, Any]) -> SignalCount:
    new = (told["answers"], told["low"], told["high"])
    old = (told["old_answers"], told["old_low"], told["old_high"])
    return SignalCount(told["signal"], *new, *old, told["finds"])


def _seconds_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
