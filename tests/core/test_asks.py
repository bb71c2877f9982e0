"""What an operator asks while something else is under way."""

import asyncio
from pathlib import Path

import pytest

from hotreload.core.reload import KeepPrevious, Rules
from hotreload.errors import NotServing
from hotreload.types import Outcome, Revision
from tests.core.conftest import World
from tests.fakes import HANG, lost

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


async def test_an_ask_whose_turn_never_comes_is_not_left_waiting(world: World) -> None:
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
    real, calls = world.source.wanted, 0

    def wanted():  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a bug in the source")
        return real()

    world.source.wanted = wanted  # type: ignore[method-assign]
    world.reconciler._backoff = lambda failures: 0.0
    async with world.running():
        await goes_live(world, ONE)


async def test_source_faults_do_not_make_a_drain_more_patient(world: World) -> None:
    for _ in range(5):
        world.steps.faults["fetch"] = OSError(5, "io")
    assert world.reconciler._rules_for(ONE).drain_timeout == world.reconciler._rules.drain_timeout
    world.ledger.failures[ONE.id] = 5
    assert world.reconciler._rules_for(ONE).drain_timeout == world.reconciler._rules.drain_timeout
