"""After a thousand reloads one process holds what it held before them."""

from itertools import islice
from pathlib import Path

import pytest

from hotreload.types import Mode
from tests.histories.reloads import grown, reloads, typical

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(3600)]

RELOADS, WARM_UP, COMPARED = 1000, 100, 100
TOLERATED_SETS = 16
"""Of memory, a fiftieth of a set of weights a reload: the heap's fragments, and the history."""


@pytest.mark.parametrize("mode", Mode)
def test_after_a_thousand_reloads_it_holds_what_it_held_before(tmp_path: Path, mode: Mode) -> None:
    held = reloads(tmp_path, RELOADS, mode)
    seen = []
    while batch := list(islice(held, COMPARED)):
        seen += batch
        print(f"\n  {len(seen):4} reloads: {batch[-1]}", end="", flush=True)
    first, last = typical(seen[WARM_UP : WARM_UP + COMPARED]), typical(seen[-COMPARED:])
    print(f"\nfirst {COMPARED} after {WARM_UP} to warm up: {first}\nlast {COMPARED}: {last}")
    assert len(seen) == RELOADS
    assert grown(first, last, memory=TOLERATED_SETS) == []
