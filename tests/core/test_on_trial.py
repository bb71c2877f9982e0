"""Weights that answer on some engines and not on all yet: who blames them, blames them alone."""

from pathlib import Path

import pytest

from hotreload.core.engines.background import NONFINITE_ANSWERS
from hotreload.core.rules import Rules
from hotreload.types import Mode, Outcome
from tests.core.conftest import World
from tests.core.test_rollout import BETTER, GOOD, answers
from tests.fakes import HANG


@pytest.fixture(params=list(Mode))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    rules = Rules(drain_timeout=0.1, probe_timeout=5.0, sets="auto")
    return World(tmp_path, rules, mode=request.param, engines=3)


async def on_trial(world: World) -> None:
    """GOOD is live everywhere, BETTER on the first engine alone."""
    world.source.publish(GOOD)
    await world.attempted()
    world.engines[1].steps.entered.clear()
    world.engines[1].steps.faults["twin"] = HANG
    world.source.publish(BETTER)
    await world.engines[1].steps.entered["twin"].wait()
    world.engines[1].steps.faults.clear()  # this copy hangs, and no later one
    assert [each.live.number for each in world.each] == [3, 2, 2]


async def test_nan_of_what_is_on_trial_refuses_that_and_nothing_else(world: World) -> None:
    async with world.running():
        await on_trial(world)
        await world.operator.leave(NONFINITE_ANSWERS, world.each[0].live)
        attempt = await world.attempted(2)
        assert attempt.reason is not None
        assert (attempt.outcome, attempt.reason.code) == (Outcome.REJECTED, "nonfinite_answers")
        assert answers(world) == ["2: good clean"] * 3
    assert set(world.ledger.refused) == {BETTER.id}


async def test_nan_of_what_has_been_left_already_leaves_nothing_else(world: World) -> None:
    async with world.running():
        world.source.publish(GOOD)
        before = world.replicas.live
        await world.attempted()
        await world.operator.leave(NONFINITE_ANSWERS, before)
    assert (world.replicas.live.number, world.ledger.refused) == (2, {})


@pytest.mark.parametrize("number", [None, 2])
async def test_a_rollback_meanwhile_leaves_what_is_on_trial(
    world: World, number: int | None
) -> None:
    async with world.running():
        await on_trial(world)
        attempt = await (await world.operator.rollback(number))
        assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
        assert answers(world) == ["2: good clean"] * 3
    assert world.ledger.refused[BETTER.id].reason.code == "rolled_back"
    assert GOOD.id not in world.ledger.refused


async def test_a_rollback_overrules_an_order_that_is_on_trial(world: World) -> None:
    world.source.known[GOOD.label] = GOOD
    world.engines[1].steps.faults["twin"] = HANG
    async with world.running():
        ordered = await world.operator.reload(GOOD.label)
        await world.engines[1].steps.entered["twin"].wait()
        done = await world.operator.rollback()
        assert (await ordered).outcome is Outcome.REJECTED
        assert (await done).outcome is Outcome.LIVE
        assert answers(world) == ["1: first clean"] * 3


async def test_one_that_names_an_older_generation_spares_what_was_live(world: World) -> None:
    async with world.running():
        await on_trial(world)
        attempt = await (await world.operator.rollback(1))
        assert attempt.outcome is Outcome.LIVE
        assert {each[2:] for each in answers(world)} == {" first clean"}
    assert set(world.ledger.refused) == {BETTER.id}
