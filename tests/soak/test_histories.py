"""Minutes of random faults, and then everything that was seen is judged.

The daemon's lives go by overlap and by draining in turn, half of the minutes through workers.
HOTRELOAD_SOAK_MINUTES says how long, HOTRELOAD_SOAK_SEED which plan.
"""

import os
import random
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest

from tests.histories.drive import chosen, for_minutes, judged
from tests.histories.faults import BY_NAME

MINUTES = float(os.environ.get("HOTRELOAD_SOAK_MINUTES", "10"))
SEED = int(os.environ.get("HOTRELOAD_SOAK_SEED", random.randrange(10**6)))

pytestmark = [
    pytest.mark.soak,
    pytest.mark.real_engine,
    pytest.mark.timeout(MINUTES * 60 + 1800),
]


Show = Callable[[str], object]


def test_killed_twenty_times_at_random_it_comes_back_each_time(
    tmp_path: Path, show_last: Show
) -> None:
    judged(tmp_path, SEED, repeat(BY_NAME["kill -9 at random"], 20), show_last)


@pytest.mark.parametrize("workers", [0, 2])
def test_minutes_of_faults_and_nothing_wrong_in_them(
    tmp_path: Path, show_last: Show, workers: int
) -> None:
    print(f"\nseed {SEED} (HOTRELOAD_SOAK_SEED), {workers} workers")
    kinds = for_minutes(chosen(SEED), MINUTES / 2)
    judged(tmp_path, SEED, kinds, show_last, sets=[f"server.workers={workers}"])
