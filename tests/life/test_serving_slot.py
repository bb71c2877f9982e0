"""What the server and a scrape get before the boot is over, and what is shown of the observers."""

from typing import Any

import pytest

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.errors import NotServing
from hotreload.events import Events, Progress
from hotreload.life.running_engine import RunningEngine
from hotreload.life.serving_slot import ServingSlot
from hotreload.observe.pictured import last_failure
from hotreload.observe.readings import new_at
from hotreload.picture.picture import Picture, ReplicaReading
from hotreload.picture.status import Status
from hotreload.types import (
    NOISY,
    AnsweringGeneration,
    Attempt,
    Generation,
    Lease,
    Outcome,
    Phase,
    Revision,
)


def entrance(engines: int) -> Entrance[RunningEngine]:
    return Entrance(Events().publish, replicas=engines)


def test_what_is_asked_before_the_boot_is_over_is_told_so() -> None:
    with pytest.raises(NotServing, match="starting") as told:
        ServingSlot(entrance(1)).operator()
    assert (told.value.code, told.value.retry_after) == ("booting", 2)


def test_a_scrape_before_the_boot_is_over_reads_plain_numbers() -> None:
    slot = ServingSlot(entrance(1))
    assert slot.read(previous_is_on_device=True) == [ReplicaReading(answering=[])]
    assert slot.entrance.list_answering() == []
    assert slot.is_turning(0.0)


async def test_a_scrape_reads_who_is_at_each_gate() -> None:
    two = entrance(2)
    engine: Any = object()
    for gate in two.gates:
        gate.open(Lease(Generation(1, Revision("one"), "fp", 0.0), engine))
    async with two.admit(), two.gates[1].admit(), two.gates[1].admit():
        inside = [each.inside for each in ServingSlot(two).read(previous_is_on_device=True)]
        assert inside == [gate.inside for gate in two.gates]
        assert sum(inside) == 3


def test_the_attempt_that_failed_last_is_found_behind_those_that_went_well() -> None:
    ends = (Outcome.LIVE, Outcome.SUPERSEDED, Outcome.POSTPONED, Outcome.REJECTED)
    ledger = Ledger()
    for outcome in reversed(ends):
        attempt = Attempt(Revision(outcome.value), outcome, None, {}, 0.0, 0.0)
        ledger.history.appendleft(attempt)
    failed = last_failure(ledger)
    assert failed is not None
    assert failed.outcome is Outcome.POSTPONED


def test_a_rollback_a_restart_and_noise_are_nothing_new() -> None:
    ledger = Ledger()
    lives = ("one", "two", "one", f"{NOISY}1-0.01-3-fp", "two")
    for at, revision in enumerate(lives, start=1):
        place = PastGeneration(at, Revision(revision), "fp", "", float(at))
        ledger.generations.append(place)
    assert new_at(ledger) == 2.0


async def test_the_live_generation_answers_also_when_it_has_no_request() -> None:
    gate = Gate[str](publish=Events().publish)
    gate.open(Lease(live := Generation(1, Revision("one"), "fp", 0.0), "an engine"))
    assert gate.list_answering() == [AnsweringGeneration(live, 0)]
    async with gate.admit():
        assert gate.list_answering() == [AnsweringGeneration(live, 1)]


def test_an_event_of_a_download_has_the_pace_that_the_status_knows() -> None:
    now = [100.0]
    picture = Picture(Ledger(), clock=lambda: now[0])
    status = Status(picture)
    for done in (250, 350):
        picture.observe(told := Progress(Revision("new"), Phase.FETCHING, done, 1000))
        fields = status.event(told)
        now[0] += 2
    assert (fields["bytes_per_second"], fields["seconds_left"]) == (50, 13.0)
