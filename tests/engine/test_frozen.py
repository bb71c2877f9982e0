"""What running engines are made of is kept out of collections, and given back when one ends."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from hotreload.engine.upstream import frozen


class Part:
    """In a circle with itself, as the parts of an engine are."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    assert not frozen._running
    yield
    gc.unfreeze()


def test_what_one_engine_leaves_is_collected_and_another_stays_frozen() -> None:
    one, other = Part(), Part()
    frozen.freeze(one)
    frozen.freeze(other)
    left = weakref.ref(one)
    key = id(one)
    del one
    assert left() is not None  # frozen: no collection finds it
    frozen._running.discard(key)
    frozen.thaw(None, left)
    assert left() is None
    assert gc.get_freeze_count() > 1000
    frozen.thaw(other, weakref.ref(other))
    assert gc.get_freeze_count() < 1000


def test_what_somebody_still_holds_is_not_frozen_for_good() -> None:
    one, other, holder = Part(), Part(), [Part()]
    for each in (one, other):
        frozen.freeze(each)
    left = weakref.ref(holder[0])
    frozen.thaw(one, left)
    holder.clear()
    gc.collect()
    assert left() is None
    frozen.thaw(other, None)
