"""Confidence sequences: by known values, by their own arithmetic, and by how often they err."""

from math import comb, log

import numpy as np
import pytest

from hotreload.features.bake.rule import Interval, interval, is_above


def test_nothing_seen_leaves_everything_possible() -> None:
    told = interval(0, 0, 0.001)
    assert (told.low, told.high) == (0.0, 1.0)


def test_an_interval_ends_where_the_mixture_is_as_much_likelier_as_the_level_says() -> None:
    """By exact arithmetic: the mixture of h hits, m misses is C(2h, h) C(2m, m) / 4^n C(n, h)."""
    hits, answers, level = 7, 60, 0.001
    misses = answers - hits
    mixture = comb(2 * hits, hits) * comb(2 * misses, misses) / 4**answers / comb(answers, hits)
    told = interval(hits, answers, level)
    for edge in (told.low, told.high):
        likelihood = edge**hits * (1 - edge) ** misses
        assert log(mixture / likelihood) == pytest.approx(-log(level), abs=1e-6)
    assert told.low < hits / answers < told.high


def test_an_interval_is_narrower_the_more_was_seen() -> None:
    widths = [interval(n // 10, n, 0.001) for n in (10, 100, 1000, 10000)]
    assert widths == sorted(widths, key=lambda each: each.low - each.high)


@pytest.mark.parametrize(("hits", "answers"), [(0, 50), (1, 50), (25, 50), (50, 50), (3, 1000)])
def test_the_quick_question_answers_as_the_interval_does(hits: int, answers: int) -> None:
    low = interval(hits, answers, 0.001).low
    for share in (low * 0.999, low * 1.001):
        assert is_above(hits, answers, share, 0.001) == (0 < share < low)


def test_at_every_look_the_true_share_is_left_out_no_oftener_than_the_level_says() -> None:
    level, share, answers = 0.05, 0.05, 1000
    said = np.random.default_rng(7).random((400, answers)) < share
    hits = np.cumsum(said, axis=1)
    looks = range(10, answers, 10)
    bounds = {n: [interval(s, n, level) for s in range(n // 4 + 2)] for n in looks}
    missed = sum(any(not _holds(bounds[n], int(row[n - 1]), share) for n in looks) for row in hits)
    assert missed <= level * len(hits)


def _holds(bounds: list[Interval], hits: int, share: float) -> bool:
    told = bounds[min(hits, len(bounds) - 1)]
    return told.low <= share <= told.high
