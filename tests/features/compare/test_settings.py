"""What the settings of a comparison say of its time, of what it hears, and to the engine."""

import pytest

from hotreload.features.compare.settings import CompareLimits, CompareSettings

UNDECIDING = CompareSettings(time=10.0)
LIMITED = CompareSettings(time=10.0, limits=CompareLimits(max_kl=0.5))


@pytest.mark.parametrize(
    ("settings", "is_dry_run", "seconds"),
    [(UNDECIDING, False, 2), (UNDECIDING, True, 10), (LIMITED, False, 10), (LIMITED, True, 10)],
)
def test_what_decides_nothing_is_compared_for_two_seconds_where_nothing_else_is_waited_for(
    settings: CompareSettings, is_dry_run: bool, seconds: float
) -> None:
    assert settings.seconds(is_dry_run=is_dry_run) == seconds


def test_less_than_two_seconds_are_kept_to() -> None:
    assert CompareSettings(time=0.25).seconds(is_dry_run=False) == 0.25


@pytest.mark.parametrize(
    ("settings", "hears"),
    [
        (CompareSettings(), False),
        (CompareSettings(mirror=0.1), True),
        (CompareSettings(replay=7), True),
        (CompareSettings(report=False, mirror=0.1, replay=7), False),
    ],
)
def test_requests_are_heard_if_so_decided_and_never_where_nothing_is_compared(
    settings: CompareSettings, hears: bool
) -> None:
    assert settings.hears is hears
    assert settings.engine_needs() == {"compares": settings.report, "corpus": (), "hears": hears}
