"""A dry run does all that comes before the going live, and changes nothing that answers."""

from pathlib import Path

import pytest

from hotreload.attempts import Attempt
from hotreload.core.rules import Rules
from hotreload.errors import Busy, CheckpointCorrupt, NotEnoughMemory
from hotreload.events import DryRunFinished, GateChanged
from hotreload.types import LoadFacts, Mode, Outcome, Phase, Revision
from tests.core.conftest import World
from tests.core.overlapping import Overlapping
from tests.fakes import HANG

GOOD = Revision("good", "step_1")
BAD = Revision("rotten", "step_1_bad")
NO_LANES = "it decodes speculatively"
RULES = Rules(drain_timeout=0.05, probe_timeout=0.25, prove_within=0.05, sets=3)


@pytest.fixture(params=list(Mode))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    world = World(tmp_path, RULES, mode=request.param)
    for revision in (GOOD, BAD):
        world.source.known[revision.label] = revision
    return world


def dry_runs(world: World) -> list[Attempt]:
    return [e.attempt for e in world.happened if isinstance(e, DryRunFinished)]


def is_as_before(world: World) -> bool:
    moves = [e for e in world.happened if isinstance(e, GateChanged)]
    is_live = world.replica.live.revision.id == "first" and world.engine.sets_held == 1
    return is_live and len(moves) == 1 and not world.ledger.refused and not world.attempts


async def test_a_good_one_passes_and_is_not_live(world: World) -> None:
    world.engine.loading = LoadFacts("own", leaves_staged=3, leaves_changed=2)
    async with world.running():
        attempt = await (await world.operator.rehearse("step_1"))
        assert (attempt.outcome, attempt.reason, attempt.generation) == (Outcome.PASSED, None, None)
        assert attempt.loading is world.engine.loading
        assert [*attempt.phases] == [
            Phase.FETCHING,
            Phase.VALIDATING,
            Phase.STAGING,
            Phase.PROBING,
        ]
        assert is_as_before(world)
        assert await world.ask() == "1: first clean"


async def test_one_that_answers_badly_is_rejected_and_not_refused(world: World) -> None:
    async with world.running():
        attempt = await (await world.operator.rehearse("step_1_bad"))
        assert (attempt.outcome, attempt.dry_run) == (Outcome.REJECTED, True)
        assert is_as_before(world)
        reload = await (await world.operator.reload("step_1_bad"))
        assert (reload.outcome, reload.dry_run) == (Outcome.REJECTED, False)
    assert world.ledger.refused.keys() == {"rotten"}


@pytest.mark.parametrize(
    ("step", "fault", "outcome"),
    [
        ("validate", CheckpointCorrupt("cut short"), Outcome.REJECTED),
        ("stage", NotEnoughMemory("3 GB are missing"), Outcome.POSTPONED),
        ("prove", NotEnoughMemory("no room for the shadow"), Outcome.POSTPONED),
        ("stage", RuntimeError("a fault of ours"), Outcome.REJECTED),
    ],
)
async def test_however_it_ends_nothing_of_it_stays_but_the_history(
    world: World, step: str, fault: Exception, outcome: Outcome
) -> None:
    world.steps.faults[step] = fault
    async with world.running():
        attempt = await (await world.operator.rehearse("step_1"))
        assert attempt.outcome is outcome
        assert is_as_before(world)
        assert (world.ledger.failures, world.ledger.not_before) == ({}, {})
        del world.steps.faults[step]
        assert (await (await world.operator.reload("step_1"))).outcome is Outcome.LIVE
    assert [each.dry_run for each in world.restarted_ledger().attempts] == [False, True]


async def test_where_no_probe_can_be_asked_beside_it_says_so_and_asks_none(world: World) -> None:
    world.engine.cannot_overlap = NO_LANES
    async with world.running():
        attempt = await (await world.operator.rehearse("step_1_bad"))
        assert (attempt.outcome, attempt.facts["unproven"]) == (Outcome.PASSED, NO_LANES)
        assert world.engine.proofs == []
        assert is_as_before(world)


async def test_what_was_refused_what_is_live_and_while_pinned_can_be_rehearsed(
    world: World,
) -> None:
    async with world.running():
        await (await world.operator.reload("step_1_bad"))
        await world.operator.pin()
        refused = await (await world.operator.rehearse("step_1_bad"))
        live = await (await world.operator.rehearse("step_0"))
    assert (refused.outcome, live.outcome) == (Outcome.REJECTED, Outcome.PASSED)
    assert world.ledger.pinned
    assert "PROBING" in {phase.name for phase in refused.phases}


async def test_a_rollback_does_not_wait_for_it(world: World) -> None:
    async with world.running():
        await (await world.operator.reload("step_1"))
        world.source.known["step_2"] = Revision("newer", "step_2")
        world.steps.entered["validate"].clear()
        world.steps.faults["validate"] = HANG
        rehearsal = await world.operator.rehearse("step_2")
        await world.steps.entered["validate"].wait()
        back = await (await world.operator.rollback())
        assert (back.outcome, (await rehearsal).outcome) == (Outcome.LIVE, Outcome.SUPERSEDED)
    assert world.replica.live.revision.id == "first"


async def test_a_death_in_it_is_not_held_against_the_revision(world: World) -> None:
    """It was somebody's question: the source's wish for it is not judged by that."""
    world.steps.faults["stage"] = HANG
    async with world.running():
        await world.operator.rehearse("step_1")
        await world.steps.entered["stage"].wait()
        assert world.ledger.under_way is None


async def test_a_real_reload_of_the_same_is_not_taken_for_it(world: World) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        rehearsal = await world.operator.rehearse("step_1")
        await world.steps.entered["stage"].wait()
        with pytest.raises(Busy):
            await world.operator.reload("step_1")
        del world.steps.faults["stage"]
        world.steps.released["stage"].set()
        assert (await rehearsal).outcome is Outcome.PASSED


async def test_one_that_waits_its_turn_decides_nothing_about_what_the_source_wishes(
    world: World,
) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.steps.entered["stage"].wait()
        rehearsal = await world.operator.rehearse("step_1_bad")
        del world.steps.faults["stage"]
        world.steps.released["stage"].set()
        assert (await rehearsal).outcome is Outcome.REJECTED
        assert [attempt.outcome for attempt in world.attempts] == [Outcome.LIVE]
        assert world.replica.live.revision == GOOD


async def test_while_one_waits_its_turn_a_pin_holds(world: World) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.steps.entered["stage"].wait()
        rehearsal = await world.operator.rehearse("step_1")
        del world.steps.faults["stage"]  # a pin waits for all that was ordered before it
        await world.operator.pin()
        assert (await rehearsal).outcome is Outcome.PASSED
        assert [attempt.outcome for attempt in world.attempts] == [Outcome.SUPERSEDED]
        assert world.replica.live.revision.id == "first"


async def test_one_that_waits_for_room_cuts_nobody_off(tmp_path: Path) -> None:
    world = Overlapping(tmp_path, Rules(finish_timeout=0.05, on_drain_timeout="abort"))
    async with world.running(), world.client():
        world.source.publish(GOOD)
        await world.attempted()
        attempt = await (await world.operator.rehearse("step_1"))
        assert attempt.outcome is Outcome.POSTPONED
        assert attempt.reason is not None
        assert attempt.reason.code == "drain"
        assert world.engine.aborts == 0
