"""When a hub is asked again."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from hotreload.sources.hub.faults import FaultKind, HubCall, HubFault, Patience, wait_asked_for
from tests.clock import Clock


def patience(poll: float = 60.0, chance: float = 0.5) -> tuple[Patience, Clock]:
    clock = Clock()
    return Patience(poll, clock=clock, chance=lambda: chance), clock


def waits(kind: FaultKind, times: int, poll: float = 60.0) -> list[float]:
    patient, _ = patience(poll)
    return [patient.after_fault(HubFault("x", kind)) for _ in range(times)]


def test_an_answer_is_followed_by_the_next_look_a_little_sooner_or_later() -> None:
    assert [patience(chance=chance)[0].after_answer(None) for chance in (0, 0.5, 1)] == [54, 60, 66]


def test_what_passes_is_waited_for_longer_each_time_and_never_for_long() -> None:
    assert waits(FaultKind.PASSING, 5) == [60, 120, 240, 300, 300]
    assert waits(FaultKind.PASSING, 4, poll=1) == [1, 2, 4, 8]
    assert waits(FaultKind.PASSING, 2, poll=900) == [900, 900]


def test_what_somebody_must_change_is_asked_seldom() -> None:
    assert waits(FaultKind.DENIED, 6) == [300, 600, 1200, 2400, 3600, 3600]


def test_looks_that_succeed_do_not_end_the_growing_for_downloads_that_fail() -> None:
    patient, _ = patience()
    waited = []
    for _ in range(3):
        patient.after_answer(None)
        waited.append(patient.after_fault(HubFault("x", FaultKind.DENIED), HubCall.DOWNLOAD))
    assert waited == [300, 600, 1200]
    assert patient.after_fault(HubFault("x", FaultKind.DENIED)) == 300  # nor the other way round
    patient.after_download()
    assert patient.after_fault(HubFault("x", FaultKind.DENIED), HubCall.DOWNLOAD) == 300


def test_downloads_that_are_limited_without_a_time_are_asked_for_less_and_less() -> None:
    patient, clock = patience(chance=0.0)
    for expected in (60, 120, 240):
        patient.after_answer(None)
        patient.after_fault(HubFault("x", FaultKind.LIMITED), HubCall.DOWNLOAD)
        assert patient.silence == expected
        clock.now += expected


def test_an_answer_ends_the_growing() -> None:
    patient, _ = patience()
    for _ in range(3):
        patient.after_fault(HubFault("x"))
    patient.after_answer(None)
    assert patient.after_fault(HubFault("x")) == 60


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_silence_is_at_least_what_was_asked_for_and_not_the_same_for_all(chance: float) -> None:
    patient, clock = patience(chance=chance)
    patient.after_fault(HubFault("x", FaultKind.LIMITED, retry_after=100.0))
    assert patient.silence == 100 + 10 * chance
    clock.now += 200
    assert patient.silence == 0


def test_a_limit_without_a_time_grows() -> None:
    patient, clock = patience(chance=0.0)
    for expected in (60, 120, 240):
        patient.after_fault(HubFault("x", FaultKind.LIMITED))
        assert patient.silence == expected
        clock.now += expected


def test_the_hub_may_say_until_when() -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    wait = wait_asked_for({"Retry-After": in_an_hour})
    assert wait is not None
    assert 3000 <= wait <= 3600


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "17"}, 17, 17),
        ({"Retry-After": "99999999"}, 86400, 86400),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"RateLimit": '"api";r=0;t=55'}, 55, 55),
        ({"Retry-After": "soon", "RateLimit": '"api";r=0;t=55'}, 55, 55),
    ],
)
def test_the_hub_says_how_long(headers: dict[str, str], low: float, high: float) -> None:
    wait = wait_asked_for(headers)
    assert wait is not None
    assert low <= wait <= high


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"RateLimit": '"api";r=1;t=55'},
        {"RateLimit": "nonsense"},
        {"Retry-After": ""},
        {"Retry-After": "Mon, 01 Jan 99999999999 00:00:00 GMT"},
        {"Retry-After": "Mon, 01 Jan 2030 00:00:00 +9999999999999"},
    ],
)
def test_a_hub_with_something_left_asks_for_nothing(headers: dict[str, str]) -> None:
    assert wait_asked_for(headers) is None
