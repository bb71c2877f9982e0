"""Forty reloads leave nothing behind; tests/soak has the thousand."""

from pathlib import Path

import pytest

from tests.histories.reloads import Held, grown, reloads, typical

pytestmark = pytest.mark.real_engine

RELOADS, WARM_UP, COMPARED = 40, 15, 8
TOLERATED_SETS = 10
"""Of memory: half a set of weights for each reload, while the heap still finds its size."""


def test_after_forty_reloads_the_process_holds_what_it_held_before(tmp_path: Path) -> None:
    seen = list(reloads(tmp_path, RELOADS))
    first, last = typical(seen[WARM_UP : WARM_UP + COMPARED]), typical(seen[-COMPARED:])
    print(f"\nfirst {COMPARED} after {WARM_UP} to warm up: {first}\nlast {COMPARED}: {last}")
    assert first.weights > 0
    assert grown(first, last, memory=TOLERATED_SETS) == []


def test_what_is_held_more_than_before_is_told() -> None:
    before = Held(memory=200_000, descriptors=60, threads=30, weights=2 * 2**20)
    assert grown(before, before, memory=1) == []
    one_more_set = Held(memory=201_100, descriptors=60, threads=30, weights=3 * 2**20)
    assert grown(before, one_more_set, memory=1) == [
        "memory: 1100 more",
        "weights: 1.04858e+06 more",
    ]
    of_the_system = Held(memory=200_000, descriptors=90, threads=60, weights=2 * 2**20)
    assert grown(before, of_the_system, memory=1) == ["descriptors: 30 more", "threads: 30 more"]
