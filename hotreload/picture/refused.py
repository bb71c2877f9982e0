"""Refusals that a person is shown: all are remembered, and most are of checkpoints long gone."""

from collections.abc import Callable, Iterable

from hotreload.types import Attempt, Refusal

SHOWN_SECONDS = 24 * 3600.0
"""A refusal of what the source has no more is shown for so long."""


def shown(
    refusals: Iterable[Refusal],
    last: Attempt | None,
    holds: Callable[[str], bool],
    now: float,
) -> list[Refusal]:
    """Those of the last day, of the last attempt and of what the source holds; newest first."""

    def is_of_note(each: Refusal) -> bool:
        was_last = last is not None and last.revision == each.revision
        return now - each.at < SHOWN_SECONDS or was_last or holds(each.revision.id)

    return sorted(filter(is_of_note, refusals), key=lambda refusal: -refusal.at)
