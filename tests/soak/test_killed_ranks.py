"""Each of two hosts that hold one engine is killed at every point of an attempt."""

from pathlib import Path

import pytest

from tests.hosts.daemons import Daemons

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(1800)]

FETCHED = ("fetching", "validating", "staging", "staged")
FLIPPED = ("proven", "swapping", "flipped", "committed")
POINTS = {
    1: (None, *FETCHED, "probing", *FLIPPED),
    0: (None, *FETCHED, *FLIPPED, "saved", "ended"),
}
"""None is while nothing is tried."""


@pytest.mark.parametrize("rank", POINTS)
def test_killed_in_any_phase_both_come_back_on_the_last_good_generation(
    tmp_path: Path, rank: int
) -> None:
    both = Daemons(tmp_path, "source.settle=0")
    both.drop()
    with both.living():
        both.stop()
    for point in POINTS[rank]:
        both.killed_at(rank, point)
    with both.again():
        both.stop()
