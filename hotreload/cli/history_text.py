"""The attempts and pins so far, as people read them: a table that keeps the reasons in sight."""

from collections.abc import Sequence
from typing import Any

from hotreload.cli import show
from hotreload.cli.show import Fields, Now, ago, for_here, moment
from hotreload.picture.words import attempt_words, named, plain, short_name, who

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The head and the rows."""
HEAD = ("WHEN", "REVISION", "OUTCOME", "GEN", "TOOK", "HELD", "REASON, CHANGE")


def history_text(past: Sequence[Fields], now: Now | None = None) -> str:
    """Write attempts and pins as a table, of fewer columns where the terminal is narrow."""
    now = now or show.now()
    forms = [_wide(past, now), _narrow(past, now)]
    return show.table(*next((form for form in forms if show.fits(*form)), forms[-1]))


def words_of(attempt: Fields) -> Fields:
    """Return the words for an attempt; of a daemon that is older than this command, made here."""
    return attempt.get("told") or attempt_words(attempt)


def _wide(past: Sequence[Fields], now: Now) -> Table:
    rows = [
        (
            moment(_ended(each), now),
            "-" if "verb" in each else named(each),
            *_figures(each),
            plain(each.get("loader") or "-"),
            for_here(_asker(each) or "source", now),
            for_here("; ".join(_notes(each)) or "-", now),
        )
        for each in past
    ]
    return (*HEAD[:-1], "LOADER", "BY", HEAD[-1]), rows


def _narrow(past: Sequence[Fields], now: Now) -> Table:
    """Put who asked among the words, and leave it out where nobody did."""
    rows = []
    for each in past:
        asker = _asker(each)
        notes = [*_notes(each), *([f"by {asker}"] if asker else [])]
        what = "-" if "verb" in each else short_name(each)
        words = for_here("; ".join(notes) or "-", now)
        rows.append((ago(_ended(each), now), what, *_figures(each), words))
    return HEAD, rows


def _ended(past: Fields) -> Any:
    return past["at"] if "verb" in past else past["finished_at"]


def _figures(past: Fields) -> tuple[str, ...]:
    """Say how it ended, the generation it made, how long it took and held requests."""
    if "verb" in past:
        return f"{plain(past['verb'])}ned", *"---"
    words, number = words_of(past), past["generation"]
    made = "-" if number is None else str(number)
    return plain(words["outcome"]), made, plain(words["took"]), plain(words["held"] or "-")


def _asker(past: Fields) -> str | None:
    """Name who asked for it; nobody did where the source wished it."""
    return who(past) if "verb" in past else words_of(past)["by"]


def _notes(past: Fields) -> list[str]:
    """Say why it failed, what a user said it is for, and what changed."""
    notes = [past["reason"], *([] if "verb" in past else words_of(past)["notes"])]
    return [plain(note) for note in notes if note]
