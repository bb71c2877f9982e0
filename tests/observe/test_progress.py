"""How far a download or a loading is: pace, metrics and events; the log has its own test."""

import math

from hotreload.core.ledger import Ledger
from hotreload.events import Event, GenerationLive, PhaseEntered, Progress, event_fields
from hotreload.picture.picture import Picture
from hotreload.picture.status import Status
from hotreload.picture.under_way import Pace
from hotreload.types import Phase, Revision
from tests.clock import Clock
from tests.observe.things import generation

OLD, NEW = Revision("old", "org/name@main"), Revision("new", "org/name@main")


def far(done: int, total: int = 1000, revision: Revision = NEW) -> Progress:
    return Progress(revision, Phase.FETCHING, done, total)


# --- the pace --------------------------------------------------------------------------------


def test_the_rate_is_that_of_what_came_lately_and_says_how_long_it_takes() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    for done in (500, 550, 600):  # the first half lay here already
        pace.observe(far(done))
        clock.now += 1
    assert pace.fields() == {
        "phase": "fetching",
        "done_bytes": 600,
        "total_bytes": 1000,
        "bytes_per_second": 33,
        "seconds_left": 12.0,
    }
    clock.now += 60
    assert pace.fields() == {
        "phase": "fetching",
        "done_bytes": 600,
        "total_bytes": 1000,
        "bytes_per_second": 0,
        "seconds_left": None,
    }


def test_another_commit_starts_anew_and_what_is_over_is_not_told() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    pace.observe(far(900, revision=OLD))
    clock.now += 1
    pace.observe(far(10))
    fields = pace.fields()
    assert fields is not None
    assert fields["bytes_per_second"] == 0
    for over in (far(1000), PhaseEntered(NEW, None), GenerationLive(generation())):
        pace.observe(far(10))
        pace.observe(over)
        assert pace.fields() is None


def test_a_loading_after_the_download_has_a_pace_of_its_own() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    pace.observe(far(900))
    clock.now += 1
    pace.observe(PhaseEntered(NEW, Phase.STAGING))
    for done in (100, 300):
        pace.observe(Progress(NEW, Phase.STAGING, done, 500))
        clock.now += 1
    fields = pace.fields()
    assert fields is not None
    assert (fields["phase"], fields["bytes_per_second"]) == ("staging", 100)


# --- the metrics -----------------------------------------------------------------------------


def metrics(*events: Event) -> tuple[float, float]:
    pace = Pace()
    for event in events:
        pace.observe(event)
    count, ratio, *_ = numbers(pace)
    return count, ratio


def numbers(pace: Pace) -> list[float]:
    return [value for family in pace.families() for _, value in family.series]


def size_and_rest(pace: Pace) -> tuple[float, float]:
    *_, size, rest = numbers(pace)
    return size, rest


def test_metrics_say_how_large_a_download_is_and_how_long_it_still_takes() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    assert size_and_rest(pace) == (0, 0)
    pace.observe(far(500))
    clock.now += 2
    assert size_and_rest(pace) == (1000, math.inf)
    pace.observe(far(600))
    assert size_and_rest(pace) == (1000, 8.0)
    pace.observe(PhaseEntered(NEW, Phase.VALIDATING))
    assert size_and_rest(pace) == (0, 0)


def test_both_metrics_are_there_from_the_start_at_0() -> None:
    assert metrics() == (0, 0)


def test_only_bytes_that_came_are_counted() -> None:
    resumed = (far(600), far(700), far(650), far(800))
    assert metrics(*resumed) == (250, 0.8)
    assert metrics(*resumed, PhaseEntered(NEW, Phase.VALIDATING)) == (250, 0)
    assert metrics(far(500, revision=OLD), far(900)) == (0, 0.9)


def test_bytes_that_are_loaded_did_not_come_from_the_hub() -> None:
    loading = Progress(NEW, Phase.STAGING, 400, 500)
    assert metrics(far(600), far(700), PhaseEntered(NEW, Phase.STAGING), loading) == (100, 0)
    assert metrics(Progress(NEW, Phase.STAGING, 100, 500), loading) == (0, 0)
    assert metrics(far(600), far(700), Progress(NEW, Phase.STAGING, 900, 1000)) == (100, 0)


# --- the events ------------------------------------------------------------------------------


def test_an_event_says_how_far_it_is() -> None:
    fields = event_fields(far(7))
    assert (fields["event"], fields["phase"]) == ("reload.progress", "fetching")
    assert (fields["revision"], fields["done"], fields["total"]) == ("new", 7, 1000)


def test_an_event_of_a_download_has_the_pace_that_the_status_knows() -> None:
    now = [100.0]
    picture = Picture(Ledger(), clock=lambda: now[0])
    status = Status(picture)
    for done in (250, 350):
        picture.observe(told := Progress(Revision("new"), Phase.FETCHING, done, 1000))
        fields = status.event(told)
        now[0] += 2
    assert (fields["bytes_per_second"], fields["seconds_left"]) == (50, 13.0)
