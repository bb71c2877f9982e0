"""What an operator orders while something else is under way."""

import asyncio
from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import Busy, NotServing, SourceUnavailable
from hotreload.types import Noise, Outcome, Revision
from tests.core.conftest import World
from tests.fakes import HANG, lost

FIRST = Revision("first", "step_0")
ONE, TWO, THREE = (Revision(f"r{n}", f"step_{n}") for n in (1, 2, 3))


async def goes_live(world: World, revision: Revision) -> None:
    world.source.publish(revision)
    await world.until(lambda: bool(world.attempts) and world.attempts[-1].revision == revision)
    assert world.replica.live.revision == revision


async def stuck_in(world: World, step: str, revision: Revision) -> None:
    world.steps.entered[step].clear()
    world.steps.faults[step] = HANG
    world.source.publish(revision)
    await world.steps.entered[step].wait()


def go_on(world: World, step: str) -> None:
    del world.steps.faults[step]
    world.steps.released[step].set()


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_a_rollback_asked_for_during_an_attempt_is_what_happens(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = World(tmp_path, Rules(keep_previous=keep))
    async with world.running():
        await goes_live(world, ONE)
        await stuck_in(world, "stage", TWO)
        promise = await world.operator.rollback()
        go_on(world, "stage")
        attempt = await promise
        assert (attempt.outcome, attempt.revision.id) == (Outcome.LIVE, "first")
        assert world.engine.answer() == "first clean"
        assert "first" not in world.ledger.refused


async def test_a_wish_that_comes_during_an_operators_reload_is_not_lost(world: World) -> None:
    async with world.running():
        world.source.known[ONE.label] = ONE
        world.steps.faults["stage"] = HANG
        promise = await world.operator.reload(ONE.label)
        await world.steps.entered["stage"].wait()
        world.source.publish(THREE)
        await world.until(lambda: world.ledger.wanted == THREE)
        go_on(world, "stage")
        assert (await promise).outcome is Outcome.LIVE
        await world.attempted(2)
    assert world.replica.live.revision == THREE


async def test_a_pin_holds_against_an_attempt_that_is_only_staged(world: World) -> None:
    async with world.running():
        await stuck_in(world, "stage", ONE)
        await world.operator.pin()
        go_on(world, "stage")
        assert (await world.attempted()).outcome is Outcome.SUPERSEDED
    assert world.replica.live.revision.id == "first"


async def test_asking_for_what_is_being_tried_does_not_load_it_twice(world: World) -> None:
    async with world.running():
        await stuck_in(world, "stage", ONE)
        promise = await world.operator.reload(ONE.label)
        go_on(world, "stage")
        attempt = await promise
    assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
    assert len(world.attempts) == 1


async def test_a_rollback_comes_before_a_reload_that_waits_for_its_turn(world: World) -> None:
    world.source.known[THREE.label] = THREE
    async with world.running():
        await goes_live(world, ONE)
        await stuck_in(world, "exchange", TWO)
        reload = await world.operator.reload(THREE.label)
        rollback = await world.operator.rollback()
        go_on(world, "exchange")
        assert (await reload).outcome is Outcome.SUPERSEDED
        assert (await rollback).outcome is Outcome.LIVE
    assert [each.revision for each in world.attempts] == [ONE, TWO, FIRST]


@pytest.mark.parametrize("verb", ["rollback", "perturb"])
async def test_a_rollback_overrules_neither_noise_nor_another_rollback(
    world: World, verb: str
) -> None:
    noise = [Noise(num_leaves=1)] if verb == "perturb" else []
    async with world.running():
        await goes_live(world, ONE)
        await stuck_in(world, "exchange", TWO)
        promise = await getattr(world.operator, verb)(*noise)
        with pytest.raises(Busy):
            await world.operator.rollback()
        go_on(world, "exchange")
        assert (await promise).outcome is Outcome.LIVE


async def test_a_rollback_ends_an_attempt_of_the_source_that_was_ordered_too(
    world: World,
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        await stuck_in(world, "fetch", TWO)
        reload = await world.operator.reload(TWO.label)
        await world.operator.rollback()
        await world.until(lambda: world.replica.live.revision == FIRST)
        assert (await reload).outcome is Outcome.SUPERSEDED


async def test_a_rollback_refuses_nothing_when_what_it_goes_back_to_is_live_by_then(
    world: World,
) -> None:
    async with world.running():
        await goes_live(world, ONE)
        await stuck_in(world, "exchange", FIRST)
        promise = await world.operator.rollback()
        go_on(world, "exchange")
        assert (await promise).outcome is Outcome.LIVE
    assert [each.revision for each in world.attempts] == [ONE, FIRST]
    assert world.ledger.refused == {}


async def test_what_is_live_is_loaded_again_by_force(world: World) -> None:
    async with world.running():
        await goes_live(world, ONE)
        assert (await (await world.operator.reload(ONE.label))).generation == 2
        assert (await (await world.operator.reload(ONE.label, force=True))).generation == 3
    assert len(world.attempts) == 2


async def test_an_order_that_is_cut_short_is_not_left_waiting(world: World) -> None:
    world.steps.faults["stage"] = HANG
    world.source.known[ONE.label] = ONE
    task = asyncio.create_task(world.reconciler.run())
    promise = await world.operator.reload(ONE.label)
    await world.steps.entered["stage"].wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert promise.cancelled()


async def test_an_order_whose_turn_never_comes_is_not_left_waiting(world: World) -> None:
    world.steps.faults["stage"] = HANG
    task = asyncio.create_task(world.reconciler.run())
    await stuck_in(world, "stage", ONE)
    world.source.known[TWO.label] = TWO
    promise = await world.operator.reload(TWO.label)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert promise.cancelled()
    with pytest.raises(NotServing):
        await world.operator.reload(TWO.label)


async def test_an_engine_that_dies_while_a_revision_is_staged_counts_as_a_death_of_it(
    world: World,
) -> None:
    task = asyncio.create_task(world.reconciler.run())
    await stuck_in(world, "stage", ONE)
    world.gate.seal(str(lost()), code=lost().code)  # as the daemon does, and then it cancels us
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.restarted_ledger().under_way == ONE


async def test_a_fault_in_the_source_is_tried_again_and_ends_nothing(world: World) -> None:
    real, calls = world.source.follow_newest, 0

    def follow_newest():  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a bug in the source")
        return real()

    world.source.follow_newest = follow_newest  # type: ignore[method-assign]
    world.reconciler.attempts.backoff = lambda failures: 0.0
    async with world.running():
        await goes_live(world, ONE)


async def test_source_faults_do_not_make_a_drain_more_patient(world: World) -> None:
    world.steps.faults["fetch"] = [SourceUnavailable("the folder is away") for _ in range(5)]
    world.wish(ONE)
    for _ in range(5):
        rest = await world.rests()
        assert rest.until is not None
        world.now = rest.until
    assert [each.outcome for each in world.attempts] == [Outcome.POSTPONED] * 5
    assert world.ledger.failures[ONE.id] == 5
    async with world.gate.admit():
        await world.rests()
    reason = world.attempts[5].reason
    assert reason is not None
    assert reason.code == "drain"
    assert " 0.1 s after" in reason.message
