"""The order of checkpoints: which of two is the newer one, by step, by time or by name."""

from pathlib import Path
from typing import Literal

from hotreload.core.ledger import PastGeneration
from hotreload.sources.names import step_of
from hotreload.sources.place import Place

Order = Literal["step", "time", "name"]

SortKey = tuple[tuple[int, int], int, str]
"""A place's step, time and name; constant where the order ignores one of them."""

_NO_STEP = (-1, -1)


def sort_key(order: Order, place: Place) -> SortKey:
    """Make what places are sorted by, the oldest first; those without a step are the oldest."""
    step = (place.step or _NO_STEP) if order == "step" else _NO_STEP
    return step, 0 if order == "name" else place.time, place.label


def is_newer(order: Order, place: Place, than: Place) -> bool:
    """Say whether a place may be meant as the newer one; without a step it goes by its time."""
    if order == "step" and place.step is not None:
        return than.step is None or place.step > than.step
    return place.label > than.label if order == "name" else place.time > than.time


def lacks_a_step(order: Order, place: Place, best: Place) -> bool:
    """Say whether a place is not the newest only since its name says no step."""
    is_below = sort_key(order, place) < sort_key(order, best)
    return place.step is None and is_below and is_newer(order, place, best)


def comes_after(order: Order, folder: Path, written_at: float, than: PastGeneration) -> bool:
    """Say whether a folder's checkpoint comes after one that was live, as far as can be told.

    In the order of time one comes after it whose files were written since it went live.
    """
    if order == "time":
        return written_at > than.since
    if order == "name":
        return folder.name > Path(than.path).name
    step, before = step_of(folder.parts), step_of(Path(than.path).parts)
    return step is None or before is None or step > before
