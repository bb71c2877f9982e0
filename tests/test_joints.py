"""What the server and a scrape get before the boot is over, and what is shown of the observers."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from hotreload.core.entrance import Entrance
from hotreload.core.gate import Gate
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.errors import NotServing
from hotreload.events import Events, Progress
from hotreload.life.joints import Arrival, Control, View, readings
from hotreload.life.running import RunningEngine
from hotreload.observe.pictured import last_failure
from hotreload.observe.readings import new_at
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.picture import Picture, ReplicaReading
from hotreload.picture.status import Status
from hotreload.types import (
    NOISY,
    Answering,
    Attempt,
    By,
    Generation,
    Lease,
    Noise,
    Outcome,
    Phase,
    Revision,
)

BY = By("reload", 0, 1, time.time(), "")
ENTRANCE = Entrance(lambda index: Gate[RunningEngine](publish=Events().publish, replica=index))
BEFORE_THE_BOOT: dict[str, Callable[[], Any]] = {
    "reload": lambda: Control(Arrival()).reload(None, by=BY, force=False),
    "rollback": lambda: Control(Arrival()).rollback(None, by=BY),
    "perturb": lambda: Control(Arrival()).perturb(Noise(), by=BY),
    "pin": lambda: Control(Arrival()).pin(by=BY),
    "unpin": lambda: Control(Arrival()).unpin(by=BY),
}


@pytest.mark.parametrize("name", BEFORE_THE_BOOT)
async def test_what_is_asked_before_the_boot_is_over_is_told_so(name: str) -> None:
    with pytest.raises(NotServing, match="starting") as told:
        await BEFORE_THE_BOOT[name]()
    assert (told.value.code, told.value.retry_after) == ("booting", 2)


def test_a_scrape_before_the_boot_is_over_reads_plain_numbers() -> None:
    read = readings(entrance=ENTRANCE, arrival=Arrival(), previous_is_on_device=True)
    assert read.replicas() == [ReplicaReading(answering=[])]
    assert read.answering() == []
    assert Arrival().is_turning(0.0)


async def test_a_scrape_reads_who_is_at_each_gate() -> None:
    two = Entrance(lambda index: Gate[RunningEngine](publish=print, replica=index), replicas=2)
    engine: Any = object()
    for gate in two.gates:
        gate.open(Lease(Generation(1, Revision("one"), "fp", 0.0), engine))
    read = readings(entrance=two, arrival=Arrival(), previous_is_on_device=True)
    async with two.passing(), two.gates[1].passing(), two.gates[1].passing():
        inside = [each.inside for each in read.replicas()]
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
    assert gate.answering() == [Answering(live, 0)]
    async with gate.passing():
        assert gate.answering() == [Answering(live, 1)]


def test_an_event_of_a_download_has_the_pace_that_the_status_knows() -> None:
    now = [100.0]
    picture = Picture(Ledger(), clock=lambda: now[0])
    view = View(Status(picture), picture.history, Checkpoints(picture, list))
    for done in (250, 350):
        picture.observe(told := Progress(Revision("new"), Phase.FETCHING, done, 1000))
        fields = view.event(told)
        now[0] += 2
    assert (fields["bytes_per_second"], fields["seconds_left"]) == (50, 13.0)
