"""What GET /gate says of what was wanted last: 200 only if it is live for good."""

from dataclasses import replace
from typing import Any

import pytest

from hotreload.attempts import Attempt, By
from hotreload.core.ledger import Overrule
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    RevisionWanted,
    Wait,
)
from hotreload.features.bake.evidence import Bake, BakeOutcome
from hotreload.types import GateState, Outcome
from tests.evidence import judged
from tests.observe.things import (
    NOON,
    STEP_7,
    STEP_8,
    Told,
    ended,
    generation,
    refusal,
    rejected,
    reports,
    went_live,
)

BAKING = Bake(BakeOutcome.BAKING, NOON, NOON + 60)
ANOTHER = replace(STEP_8, id="9" * 40, label="step-9")
LIVE_7 = GenerationLive(generation(3))
LIVE_8 = GenerationLive(generation(4, STEP_8))


def finished(attempt: Attempt, live: GenerationLive = LIVE_7) -> AttemptFinished:
    return AttemptFinished(attempt, live.generation)


def went_back(verb: str) -> Attempt:
    by = By(verb, 0, 7, NOON, "it talks too much")
    return replace(went_live(5, STEP_7), by=by)


def told(*happened: Event, **how: Any) -> Told:
    status = Told(**how)
    for event in (GateChanged(GateState.OPEN, 0, 0), *happened):
        status.observe(event)
    return status


TRIED = (LIVE_7, RevisionWanted(STEP_8))


@pytest.mark.parametrize(
    ("happened", "verdict", "why"),
    [
        ((LIVE_7,), "pass", "step-7 (777777777777) is live"),
        (TRIED, "waiting", "step-8 (888888888888) is not live yet"),
        ((*TRIED, Wait("a pin holds it", "reconciler")), "waiting", "a pin holds it"),
        (
            (*TRIED, finished(rejected())),
            "rejected",
            "step-8 (888888888888): model.safetensors ends early",
        ),
        ((*TRIED, finished(ended(Outcome.POSTPONED))), "postponed", "step-8 (888888888888): busy"),
        (
            (*TRIED, finished(rejected()), RevisionWanted(ANOTHER)),
            "waiting",
            "step-9 (999999999999) is not live yet",
        ),
        ((*TRIED, LIVE_8, finished(went_live(), LIVE_8)), "pass", "step-8 (888888888888) is live"),
        # An operator's own order is refused, and what the source wished is live.
        (
            (*TRIED, LIVE_8, finished(replace(rejected(), revision=ANOTHER), LIVE_8)),
            "rejected",
            "step-9 (999999999999): model.safetensors ends early",
        ),
    ],
)
def test_it_passes_only_what_was_wanted_last_and_is_live(
    happened: tuple[Event, ...], verdict: str, why: str
) -> None:
    found = told(*happened).verdict()
    assert (found["verdict"], found["why"]) == (verdict, why)
    assert found["pass"] == (verdict == "pass")


@pytest.mark.parametrize("verb", ["rollback", "bake"])
def test_a_way_back_is_no_pass_until_something_else_is_live(verb: str) -> None:
    back = GenerationLive(generation(5))
    status = told(LIVE_8, back, RevisionWanted(STEP_7), finished(went_back(verb), back))
    found = status.verdict()
    assert (found["verdict"], found["pass"]) == ("rolled_back", False)
    assert found["why"] == "back to step-7 (777777777777): it talks too much"
    for event in (RevisionWanted(STEP_8), LIVE_8, finished(went_live(), LIVE_8)):
        status.observe(event)
    assert status.verdict()["pass"]


def test_who_lets_nobody_in_has_nothing_that_passes() -> None:
    assert Told().verdict()["verdict"] == "not_serving"
    sealed = GateChanged(GateState.SEALED, 0, 0, "the engine is lost", "engine_lost")
    found = told(LIVE_7, sealed).verdict()
    assert (found["verdict"], found["pass"]) == ("not_serving", False)
    assert "the engine is lost" in found["why"]


def test_after_a_restart_too_a_way_back_is_none_and_what_is_refused_is_refused() -> None:
    status = told(LIVE_7, finished(went_live(3, STEP_7)))
    assert status.verdict()["pass"]
    by = By("rollback", 0, 7, NOON)
    status.picture.ledger.overruled = Overrule(STEP_7, STEP_8, by)
    found = status.verdict()
    assert (found["verdict"], found["why"]) == (
        "rolled_back",
        "back to step-7 (777777777777): as ordered",
    )
    status.picture.ledger.overruled = None
    status.picture.ledger.refused[STEP_8.id] = refusal()
    status.observe(RevisionWanted(STEP_8))
    assert status.verdict()["verdict"] == "rejected"


def test_what_still_bakes_is_no_pass_and_how_it_baked_is_told() -> None:
    bakes: list[Bake | None] = [BAKING]
    happened = (*TRIED, LIVE_8, finished(went_live(), LIVE_8))
    status = told(*happened, reports=reports(bake=lambda: bakes[0]))
    found = status.verdict()
    assert (found["verdict"], found["bake"]["outcome"]) == ("baking", "baking")
    bakes[0] = None
    done = judged(went_live(), baked=replace(BAKING, outcome=BakeOutcome.PROMOTED))
    status.observe(finished(done, LIVE_8))
    found = status.verdict()
    assert (found["pass"], found["bake"]["outcome"]) == (True, "promoted")
    assert found["live"]["generation"] == found["attempt"]["generation"] == 4


@pytest.mark.parametrize(
    ("named", "verdict"),
    [
        ("step-8", "pass"),
        (STEP_8.id, "pass"),
        ("step-7", "replaced"),
        ("step-9", "rejected"),
        ("step-10", "waiting"),
    ],
)
def test_of_a_revision_that_is_named_nothing_else_matters(named: str, verdict: str) -> None:
    """A 200 must not be of the one before: a source may not have seen the new one yet."""
    status = told(
        finished(went_live(3, STEP_7)),
        *TRIED,
        LIVE_8,
        finished(went_live(), LIVE_8),
        finished(replace(rejected(), revision=ANOTHER), LIVE_8),
        RevisionWanted(replace(ANOTHER, id="a" * 40, label="step-11")),
    )
    assert status.verdict()["verdict"] == "waiting"
    found = status.verdict(named)
    assert (found["verdict"], found["pass"]) == (verdict, verdict == "pass")


def test_a_label_means_the_newest_revision_that_has_it() -> None:
    """A folder may be written anew, and a branch moves on: its new bytes are not what is live."""
    anew = replace(STEP_8, id="a" * 40)
    status = told(*TRIED, LIVE_8, finished(went_live(), LIVE_8), RevisionWanted(anew))
    assert status.verdict("step-8")["verdict"] == "waiting"
    assert status.verdict(STEP_8.id)["pass"]
    status.observe(finished(replace(rejected(), revision=anew), LIVE_8))
    assert status.verdict("step-8")["verdict"] == "rejected"
    status.observe(RevisionWanted(ANOTHER))
    assert status.verdict("step-8")["verdict"] == "rejected"
    live = GenerationLive(generation(5, anew))
    for event in (live, finished(replace(went_live(5), revision=anew), live)):
        status.observe(event)
    assert status.verdict("step-8")["pass"]
    assert status.verdict(STEP_8.id)["verdict"] == "replaced"


@pytest.mark.parametrize("outcome", [BakeOutcome.CONVICTED, BakeOutcome.INCONCLUSIVE])
def test_what_is_being_left_is_no_pass_while_it_is_live(outcome: BakeOutcome) -> None:
    condemned = replace(BAKING, outcome=outcome, words="empty answers 60 of 100")
    happened = (*TRIED, LIVE_8, finished(judged(went_live(), baked=condemned), LIVE_8))
    found = told(*happened, reports=reports(left=lambda: condemned)).verdict()
    assert (found["pass"], found["verdict"]) == (False, outcome.value)
    assert found["why"].endswith("is being left: empty answers 60 of 100")
    assert found["bake"]["outcome"] == outcome.value
