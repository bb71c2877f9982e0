"""The attempts and pins so far, as people read them: a table that keeps the reasons in sight."""

from collections.abc import Sequence
from typing import Any

from hotreload.cli import show
from hotreload.cli.loading_text import drift_text
from hotreload.cli.show import Fields, Now, ago, asked_by, moment, named, outcome_word, plain, who
from hotreload.figures import duration

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The head and the rows."""
HEAD = ("WHEN", "REVISION", "OUTCOME", "GEN", "TOOK", "HELD", "REASON, CHANGE")


def history_text(past: Sequence[Fields], now: Now | None = None) -> str:
    """Write attempts and pins as a table, of fewer columns where the terminal is narrow."""
    now = now or show.now()
    forms = [_wide(past, now), _narrow(past, now)]
    return show.table(*next((form for form in forms if show.fits(*form)), forms[-1]))


def _wide(past: Sequence[Fields], now: Now) -> Table:
    rows = [
        (
            moment(_ended(each), now),
            "-" if "verb" in each else named(each),
            *_figures(each),
            plain(each.get("loader") or "-"),
            who(each) if "verb" in each else asked_by(each.get("by")),
            _joined(_notes(each)),
        )
        for each in past
    ]
    return (*HEAD[:-1], "LOADER", "BY", HEAD[-1]), rows


def _narrow(past: Sequence[Fields], now: Now) -> Table:
    """Who asked stands among the words, and is left out where nobody did."""
    rows = [
        (
            ago(_ended(each), now),
            "-" if "verb" in each else plain(each["label"] or each["revision"][:12]),
            *_figures(each),
            _joined([*_notes(each), _asked_for(each)]),
        )
        for each in past
    ]
    return HEAD, rows


def _ended(past: Fields) -> Any:
    return past["at"] if "verb" in past else past["finished_at"]


def _figures(past: Fields) -> tuple[str, ...]:
    """How it ended, the generation it made, how long it took and held requests."""
    if "verb" in past:
        return f"{plain(past['verb'])}ned", *"---"
    return (
        outcome_word(past),
        "-" if past["generation"] is None else str(past["generation"]),
        duration(sum(past["phases"].values())),
        duration(past["pause_seconds"]) if past["pause_seconds"] else "-",
    )


def _notes(past: Fields) -> list[str | None]:
    """Why it failed, what the user said it is for, and what changed."""
    if "verb" in past:
        return [past["reason"]]
    by = past.get("by")
    change = drift_text(past) if past.get("loader") else None
    return [_left(past), past["reason"], by and by["reason"], change]


def _asked_for(past: Fields) -> str | None:
    if "verb" in past:
        return f"by {who(past)}"
    return f"by {asked_by(past['by'])}" if past.get("by") else None


def _joined(notes: Sequence[str | None]) -> str:
    return "; ".join(plain(note) for note in notes if note) or "-"


def _left(attempt: Fields) -> str | None:
    """Which weights a rollback left."""
    left = attempt.get("replaced")
    if not left or outcome_word(attempt) != "rolled back":
        return None
    return f"from {named(left)}, generation {left['generation']}"
