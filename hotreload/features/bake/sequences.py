"""Confidence sequences for a share: intervals that hold at every look at once, however often.

By the mixture of binomials over a beta of one half and one half: each share is kept that the
answers so far do not make too unlikely beside that mixture. By Ville's inequality the true share is
ever left out with a chance of at most `level`, so looking after every answer costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log, log1p

HALVINGS = 50
"""Halvings of an interval: far finer than any number that is shown."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The shares that what was seen leaves possible."""

    low: float
    high: float


def interval(hits: int, answers: int, level: float) -> Interval:
    """The shares that so many hits among so many answers leave possible."""
    if answers == 0:
        return Interval(0.0, 1.0)
    limit, seen = -log(level), hits / answers

    def is_left_out(share: float) -> bool:
        return _evidence(hits, answers, share) >= limit

    low = 0.0 if hits == 0 else _edge(is_left_out, 0.0, seen)
    high = 1.0 if hits == answers else _edge(is_left_out, 1.0, seen)
    return Interval(low, high)


def is_above(hits: int, answers: int, share: float, level: float) -> bool:
    """True if the whole interval lies above this share; cheaper than the interval is."""
    if answers == 0 or hits <= share * answers or share >= 1:
        return False
    return share <= 0 or _evidence(hits, answers, share) >= -log(level)


def _evidence(hits: int, answers: int, share: float) -> float:
    """The logarithm of the evidence against a share."""
    misses = answers - hits
    mixture = lgamma(hits + 0.5) + lgamma(misses + 0.5) - lgamma(answers + 1) - 2 * lgamma(0.5)
    likelihood = (hits * log(share) if hits else 0.0) + (misses * log1p(-share) if misses else 0.0)
    return mixture - likelihood


def _edge(is_left_out: Callable[[float], bool], out: float, within: float) -> float:
    """The border between a share that is left out and one that is not, by halving."""
    for _ in range(HALVINGS):
        middle = (out + within) / 2
        if is_left_out(middle):
            out = middle
        else:
            within = middle
    return out
