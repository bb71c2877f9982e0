"""What the settings of a comparison say of its time, of what it hears, and to the engine."""

import pytest

from hotreload.features.compare.settings import CompareLimits, CompareSettings

UNDECIDING = CompareSettings(time=10.0)
LIMITED = CompareSettings(time=10.0, limits=CompareLimits(max_kl=0.5))


@pytest.mark.parametrize(
    ("settings", "is_hurried", "seconds"),
    [(UNDECIDING, True, 2), (UNDECIDING, False, 40), (LIMITED, True, 40), (LIMITED, False, 40)],
)
def test_what_decides_nothing_is_compared_for_two_seconds_where_nothing_else_is_waited_for(
    settings: CompareSettings, is_hurried: bool, seconds: float
) -> None:
    assert settings.seconds(0.25, is_hurried=is_hurried) == seconds


def test_less_than_two_seconds_are_kept_to() -> None:
    assert CompareSettings(time=0.25).seconds(0.25, is_hurried=True) == 1


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
