"""Told to stop at every point of an attempt that tests/integration leaves out."""

from pathlib import Path

import pytest

from tests.integration.deaths import made, stop_at
from tests.integration.test_crashes import STOPS

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(300)]

POINTS = {
    "fetching=hang": 1,
    "validating=hang": 1,
    "staged=hang": 1,
    "swapped=delay:1.5": 2,
    "rolling_back=delay:1.5": 1,
    "committed=delay:1.5": 2,
}


@pytest.mark.parametrize("failpoint", POINTS)
def test_told_to_stop_at_any_other_point_it_exits_0_in_time(tmp_path: Path, failpoint: str) -> None:
    assert failpoint not in STOPS
    stop_at(made(tmp_path), failpoint, POINTS[failpoint])
