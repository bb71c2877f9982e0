"""Minutes of random faults, and then everything that was seen is judged.

HOTRELOAD_SOAK_MINUTES says how long, HOTRELOAD_SOAK_SEED which plan.
"""

import os
import random
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import pytest

from tests.histories.check import violations
from tests.histories.drive import chosen, drive, for_minutes
from tests.histories.faults import BY_NAME, Kind
from tests.histories.table import table

MINUTES = float(os.environ.get("HOTRELOAD_SOAK_MINUTES", "10"))
SEED = int(os.environ.get("HOTRELOAD_SOAK_SEED", random.randrange(10**6)))

pytestmark = [
    pytest.mark.soak,
    pytest.mark.real_engine,
    pytest.mark.timeout(MINUTES * 60 + 1800),
]


def test_minutes_of_faults_and_nothing_wrong_in_them(tmp_path: Path) -> None:
    judged(tmp_path, for_minutes(chosen(SEED), MINUTES))


def test_killed_twenty_times_at_random_it_comes_back_each_time(tmp_path: Path) -> None:
    judged(tmp_path, repeat(BY_NAME["kill -9 at random"], 20))


def judged(folder: Path, kinds: Iterable[Kind]) -> None:
    """Drive, print the table, and judge."""
    print(f"\nseed {SEED} (HOTRELOAD_SOAK_SEED)")
    record = drive(folder, SEED, kinds)
    saved = record.save(folder / "record.jsonl")
    print(table(record))
    assert violations(record) == [], f"seed {SEED}, the record: {saved}"
