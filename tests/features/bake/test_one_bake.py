"""A bake in time: answers that end late are no sign of those that ended soon."""

import random
from collections.abc import Iterator

from hotreload.features.bake.conduct import Conduct
from hotreload.features.bake.one_bake import OneBake
from hotreload.features.bake.rule import BakeSettings
from hotreload.features.bake.signals import SeenAnswer, Signal
from hotreload.types import Generation, Revision

GOOD, EMPTY = SeenAnswer(frozenset(), 500), SeenAnswer(frozenset({Signal.EMPTY}), 0)
LONG = 60.0
"""Seconds that a good answer takes; an empty one ends at once."""


def conduct(number: int) -> Conduct:
    return Conduct(Generation(number, Revision(f"r{number}"), f"fp-{number}", 0.0))


def found_in(chance: random.Random, *, before: float, empty: float, old_for: float) -> bool:
    """Whether a bake convicts; ten answers a second begin, by the old weights until 0."""
    old, new = conduct(1), conduct(2)
    bake: OneBake | None = None
    told = happenings(chance, before, empty, old_for)
    for moment, weights, ends in sorted(told, key=lambda each: each[0]):
        if moment >= 0 and bake is None:
            bake = OneBake(new.generation, new, old, BakeSettings(time=300.0), 0.0, 0.0)
        of = new if weights else old
        if ends is None:
            of.begin(1)
        else:
            of.end(1000, EMPTY if ends else GOOD)
        if bake is not None and weights and ends is not None:
            bake.look()
            if bake.found:
                return True
    return False


def happenings(
    chance: random.Random, before: float, empty: float, old_for: float
) -> Iterator[tuple[float, int, bool | None]]:
    """Beginnings (None) and ends of answers, empty or not, by old (0) and new weights (1)."""
    for tenth in range(int(-10 * old_for), 1200):
        began, weights = tenth / 10, int(tenth >= 0)
        is_empty = chance.random() < (empty if weights else before)
        yield began, weights, None
        yield began + (0.01 if is_empty else LONG), weights, is_empty


def test_no_good_weights_are_convicted_by_what_ends_first() -> None:
    chance = random.Random(5)
    for old_for in (10.0, 200.0, 600.0):
        for _ in range(5):
            assert not found_in(chance, before=0.05, empty=0.05, old_for=old_for)


def test_bad_ones_are_all_the_same() -> None:
    assert found_in(random.Random(5), before=0.05, empty=0.5, old_for=600.0)
