"""Finds the generation to roll back to: the one of a number, or the one before the live one."""

from collections.abc import Callable, Iterable

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.errors import BadRequest, NothingOfThatName
from hotreload.types import Generation

WhereToFind = Callable[[PastGeneration], str | None]
"""Return where a generation's weights can be loaded from; None if from nowhere."""


def find_numbered(ledger: Ledger, live: Generation, number: int) -> PastGeneration:
    """Find the generation of this number; BadRequest when it is live, or forgotten."""
    if number == live.number:
        raise BadRequest(f"generation {number} is live already")
    place = ledger.past(number)
    if place is None:
        raise NothingOfThatName(
            f"generation {number} is not remembered; known are {_list_known(ledger)}"
        )
    return place


def find_last_with_files(ledger: Ledger, live: Generation) -> PastGeneration:
    """Find the newest earlier generation that has files; BadRequest without any."""
    place = ledger.past_before(live)
    if place is None:
        raise BadRequest(f"no generation before {live.number} is left to go back to")
    return place


def find_last(ledger: Ledger, live: Generation, where: WhereToFind) -> PastGeneration:
    """Find the generation just before; BadRequest when its weights are gone: none is skipped."""
    older = ledger.before(live)
    if not older:
        raise BadRequest(f"there is nothing before generation {live.number} to go back to")
    if where(before := older[0]) is None:
        raise BadRequest(
            f"generation {before.number} ({before.revision.label}), the one before, is no "
            f"longer in memory and has no files; {_list_others(reversed(older), where)}"
        )
    return before


def _list_others(older: Iterable[PastGeneration], where: WhereToFind) -> str:
    found = [(place, at) for place in older if (at := where(place)) is not None]
    if not found:
        return "nor is there any other: stage its weights again"
    listed = ", ".join(f"{each.number} ({each.revision.label}, {at})" for each, at in found)
    return f"there is still {listed}: name it, or stage the weights you want"


def _list_known(ledger: Ledger) -> str:
    return ", ".join(str(place.number) for place in ledger.generations)
