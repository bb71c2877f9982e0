"""What a start says of itself: which step, since when, how far, and how long it took last time."""

from hotreload.attempts import START, Attempt, By
from hotreload.events import Event, PhaseEntered, Progress, Wait
from hotreload.picture.under_way import BootProgress
from hotreload.types import Outcome, Phase
from tests.clock import Clock
from tests.observe.things import STEP_7, STEP_8, ended

BY_A_START = By(START, 0, 1, 0.0, "the newest checkpoint")


def started(seconds: float, outcome: Outcome = Outcome.LIVE) -> Attempt:
    return Attempt(STEP_7, outcome, None, {Phase.BUILDING: seconds}, 0.0, 0.0, by=BY_A_START)


def after(*events: Event, history: tuple[Attempt, ...] = ()) -> BootProgress:
    booting = BootProgress(lambda: history)
    for event in events:
        booting.observe(event)
    return booting


def test_it_names_the_step_and_the_revision_and_counts_from_its_beginning() -> None:
    clock = Clock()
    booting = BootProgress(clock=clock, wall=lambda: 1_700_000_000.0 + clock() - 1000.0)
    assert booting.fields()["step"] == "starting"
    clock.now += 2.0
    booting.observe(PhaseEntered(STEP_7, Phase.BUILDING))
    clock.now += 3.0
    said = booting.fields()
    assert (said["step"], said["label"], said["step_seconds"]) == ("building", STEP_7.label, 3.0)
    assert said["doing"] == f"building the engine with {STEP_7}"
    assert (said["since"], said["step_since"]) == (
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:22.000Z",
    )


def test_how_far_a_step_is_ends_with_it() -> None:
    copying = (PhaseEntered(STEP_7, Phase.STAGING), Progress(STEP_7, Phase.STAGING, 4, 9))
    said = after(*copying).fields()
    assert (said["done"], said["total"], said["unit"]) == (4, 9, "bytes")
    said = after(*copying, PhaseEntered(STEP_7, Phase.BUILDING)).fields()
    assert (said["done"], said["total"], said["unit"]) == (None, None, None)


def test_what_is_compiled_is_counted_in_batches() -> None:
    warming = (PhaseEntered(STEP_7, Phase.WARMING), Progress(STEP_7, Phase.WARMING, 3, 8))
    said = after(*warming).fields()
    assert (said["done"], said["total"], said["unit"]) == (3, 8, "batches")


def test_it_says_how_long_the_step_took_in_the_last_start_that_ended_well() -> None:
    building = PhaseEntered(STEP_8, Phase.BUILDING)
    past = (ended(Outcome.LIVE), started(9.0, Outcome.LOST), started(41.0), started(50.0))
    assert after(building, history=past).fields()["usual_seconds"] == 41.0
    assert after(building, history=(ended(Outcome.LIVE),)).fields()["usual_seconds"] is None
    probing = PhaseEntered(STEP_8, Phase.PROBING)
    assert after(probing, history=past).fields()["usual_seconds"] is None


def test_between_two_candidates_it_waits_for_what_it_says() -> None:
    tried = (PhaseEntered(STEP_7, Phase.VALIDATING), PhaseEntered(STEP_7, None))
    assert after(*tried).fields()["step"] == "starting"
    said = after(*tried, Wait("a checkpoint that can be served", "start")).fields()
    assert (said["step"], said["doing"]) == (
        "waiting",
        "waiting for a checkpoint that can be served",
    )
    assert said["revision"] is None


def test_a_wait_that_is_told_again_has_not_begun_anew() -> None:
    clock = iter(range(9)).__next__
    booting = BootProgress(clock=clock)
    for _ in range(3):
        booting.observe(Wait("its files", "start"))
    assert booting.fields()["step_seconds"] == 1
