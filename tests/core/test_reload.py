"""One attempt against every fault at every step; after each, the world must be whole."""

import asyncio
from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import (
    CheckpointCorrupt,
    CheckpointIncompatible,
    EngineLost,
    NotEnoughMemory,
    SourceUnavailable,
)
from hotreload.events import AttemptFinished, GateChanged, GenerationLive, PhaseEntered
from hotreload.threads import run_to_end
from hotreload.types import GateState, Outcome, Phase, Revision
from tests.core.conftest import World
from tests.fakes import HANG, lost

NEW = Revision("new", "step_1")
BAD = Revision("rotten", "step_1_bad")


def assert_whole(world: World, says: str) -> None:
    assert world.gate.state is GateState.OPEN
    assert (world.gate.inside, world.gate.held) == (0, 0)
    kept = 1 if world.replica.previous else 0
    assert world.engine.sets_held == 1 + kept
    assert world.engine.answer() == f"{says} clean"
    assert world.replica.live.revision.id == says


async def test_a_good_checkpoint_goes_live(world: World) -> None:
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert attempt.outcome is Outcome.LIVE
        assert attempt.generation == 2
        assert await world.ask() == "2: new clean"
        assert_whole(world, "new")
    assert list(attempt.phases) == [
        Phase.FETCHING,
        Phase.VALIDATING,
        Phase.STAGING,
        Phase.DRAINING,
        Phase.SWAPPING,
        Phase.PROBING,
    ]


async def test_all_that_is_told_of_an_attempt_on_one_engine_says_on_which(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(), replica=2)
    async with world.running():
        world.source.publish(NEW)
        await world.attempted()
    of_an_engine = (GateChanged, GenerationLive, AttemptFinished)
    told = [event for event in world.happened if isinstance(event, of_an_engine)]
    assert {type(event) for event in told} == set(of_an_engine)
    assert {event.replica for event in told} == {2}


async def test_nobody_is_inside_while_the_weights_change(world: World) -> None:
    inside: list[int] = []
    real = world.engine.exchange

    async def exchange(staged):  # type: ignore[no-untyped-def]
        inside.append(world.gate.inside)
        return await real(staged)

    world.engine.exchange = exchange  # type: ignore[method-assign]
    async with world.running():
        async with world.gate.admit():
            world.source.publish(NEW)
            await world.until(lambda: world.gate.state is GateState.HOLDING)
            held = asyncio.create_task(world.ask())
        assert await held == "2: new clean"
    assert inside == [0]


async def test_a_bad_answer_rolls_back_and_nothing_of_it_is_left(world: World) -> None:
    async with world.running():
        world.source.publish(BAD)
        attempt = await world.attempted()
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.rolled_back
    assert attempt.reason is not None
    assert attempt.reason.code == "probe"
    assert Phase.ROLLING_BACK in attempt.phases
    assert world.engine.scrubs == 2  # at the swap, and at the way back
    assert_whole(world, "first")


async def test_a_hanging_probe_rolls_back(world: World) -> None:
    world.steps.faults["probe"] = HANG
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
    assert attempt.reason is not None
    assert attempt.reason.code == "probe"
    assert "probe_timeout" in attempt.reason.message
    assert_whole(world, "first")


STEPS = ("fetch", "validate", "stage", "exchange", "probe")
ERRORS = {
    "rejected": (CheckpointCorrupt("model.safetensors: cut short"), Outcome.REJECTED, "corrupt"),
    "try again": (SourceUnavailable("the folder is away"), Outcome.POSTPONED, "source"),
    "a bug of ours": (RuntimeError("oops"), Outcome.REJECTED, "internal"),
    "an OS error": (OSError(5, "Input/output error"), Outcome.REJECTED, "internal"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
async def test_after_any_error_at_any_step_the_old_weights_answer(
    world: World, step: str, kind: str
) -> None:
    error, outcome, code = ERRORS[kind]
    world.steps.faults[step] = [error]
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        if step == "probe" and not isinstance(error, CheckpointCorrupt):
            outcome, code = Outcome.REJECTED, "probe"  # whatever breaks a probe is a bad answer
        assert (attempt.outcome, attempt.reason and attempt.reason.code) == (outcome, code)
        assert_whole(world, "first")
        world.source.publish(Revision("after", "step_2"))
        assert (await world.attempted(2)).outcome is Outcome.LIVE
        assert_whole(world, "after")


@pytest.mark.parametrize("step", [*STEPS, "scrub"])
async def test_a_lost_engine_seals_the_gate_and_ends_the_reconciler(
    world: World, step: str
) -> None:
    world.steps.faults[step] = lost()
    task = asyncio.create_task(world.reconciler.run())
    world.source.publish(BAD)
    with pytest.RaisesGroup(EngineLost):
        await task
    assert world.attempts[-1].outcome is Outcome.LOST
    if step in ("exchange", "probe", "scrub"):
        assert world.gate.state is GateState.SEALED


async def test_a_rollback_that_fails_loses_the_engine(world: World) -> None:
    real = world.engine.exchange
    calls = iter([real, None])

    async def exchange(staged):  # type: ignore[no-untyped-def]
        once = next(calls)
        if once is None:
            raise RuntimeError("the device is gone")
        return await once(staged)

    world.engine.exchange = exchange  # type: ignore[method-assign]
    task = asyncio.create_task(world.reconciler.run())
    world.source.publish(BAD)
    with pytest.RaisesGroup(EngineLost):
        await task
    assert world.gate.state is GateState.SEALED


@pytest.mark.parametrize("step", ["fetch", "validate", "stage"])
async def test_a_cancel_before_the_swap_leaves_everything_as_it_was(
    world: World, step: str
) -> None:
    world.steps.faults[step] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered[step].wait()
    assert_whole(world, "first")
    assert not world.attempts
    assert world.restarted_ledger().under_way is None


@pytest.mark.parametrize(("revision", "says"), [(NEW, "new"), (BAD, "first")])
@pytest.mark.parametrize("step", ["exchange", "probe"])
async def test_a_cancel_during_the_swap_waits_for_its_end(
    world: World, step: str, revision: Revision, says: str
) -> None:
    world.steps.faults[step] = HANG
    world.reconciler.rules = Rules(probe_timeout=5)
    task = asyncio.create_task(world.reconciler.run())
    world.source.publish(revision)
    await world.steps.entered[step].wait()
    task.cancel()
    await asyncio.sleep(0)
    del world.steps.faults[step]
    world.steps.released[step].set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_whole(world, says)
    assert world.attempts[-1].outcome is (Outcome.LIVE if says == "new" else Outcome.REJECTED)
    last_good = world.restarted_ledger().last_good
    assert last_good is not None
    assert last_good.revision.id == says


async def test_a_drain_that_does_not_end_is_postponed(world: World) -> None:
    async with world.running(), world.gate.admit():
        world.source.publish(NEW)
        attempt = await world.attempted()
    assert attempt.outcome is Outcome.POSTPONED
    assert attempt.reason is not None
    assert attempt.reason.code == "drain"
    assert world.engine.live.revision.id == "first"
    assert world.gate.state is GateState.OPEN


async def test_a_drain_that_does_not_end_aborts_when_told_to(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(drain_timeout=0.01, on_drain_timeout="abort"))
    leave = asyncio.Event()
    world.engine.on_abort.append(leave)

    async def stay() -> None:
        async with world.gate.admit():
            await leave.wait()

    async with world.running():
        guest = asyncio.create_task(stay())
        await asyncio.sleep(0)
        world.source.publish(NEW)
        attempt = await world.attempted()
        await guest
    assert attempt.outcome is Outcome.LIVE
    assert world.engine.aborts == 1


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_what_was_live_is_kept_as_the_operator_decided(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = World(tmp_path, Rules(keep_previous=keep))
    async with world.running():
        for number in range(3):
            world.source.publish(Revision(f"r{number}", f"step_{number}"))
            await world.attempted(number + 1)
        await world.until(lambda: world.gate.state is GateState.OPEN)
    previous = world.replica.previous
    assert_whole(world, "r2")
    if keep is KeepPrevious.NONE:
        assert previous is None
    else:
        assert previous is not None
        assert previous.revision.id == "r1"
        assert previous.weights.is_on_device is (keep is KeepPrevious.DEVICE)


async def test_two_sets_on_the_device_are_the_most_there_ever_are(world: World) -> None:
    most = 0
    real = world.engine.stage

    async def stage(checkpoint):  # type: ignore[no-untyped-def]
        nonlocal most
        staged = await real(checkpoint)
        most = max(most, world.engine.sets_held)
        return staged

    world.engine.stage = stage  # type: ignore[method-assign]
    async with world.running():
        for number in range(3):
            world.source.publish(Revision(f"r{number}", f"step_{number}"))
            await world.attempted(number + 1)
    assert most == 2


async def test_too_little_memory_is_tried_again(world: World) -> None:
    world.steps.faults["stage"] = [NotEnoughMemory("needs 8 GB, 2 GB are free")]
    world.wish(NEW)
    rest = await world.rests()
    assert [each.outcome for each in world.attempts] == [Outcome.POSTPONED]
    assert rest.until is not None
    assert world.waiting_for == rest.why
    assert "tried again" in str(rest.why)
    world.now = rest.until
    await world.rests()
    assert [each.outcome for each in world.attempts] == [Outcome.POSTPONED, Outcome.LIVE]


async def test_the_phases_are_told_as_they_begin(world: World) -> None:
    world.steps.faults["validate"] = [CheckpointIncompatible("wrong shape", code="shape")]
    async with world.running():
        world.source.publish(NEW)
        await world.attempted()
    phases = [event.phase for event in world.happened if isinstance(event, PhaseEntered)]
    assert phases == [Phase.FETCHING, Phase.VALIDATING, None]


async def test_uninterrupted_work_ends_before_its_cancel_is_felt() -> None:
    finish = asyncio.Event()
    done: list[str] = []

    async def work() -> None:
        await finish.wait()
        done.append("done")

    task = asyncio.create_task(run_to_end(work()))
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]


async def test_each_postponed_drain_is_more_patient_than_the_one_before(world: World) -> None:
    leave = asyncio.Event()

    async def stay() -> None:
        async with world.gate.admit():
            await leave.wait()

    guest = asyncio.create_task(stay())
    await asyncio.sleep(0)
    world.wish(NEW)
    for _ in range(3):
        await world.rests()
        world.now += 1000
    leave.set()
    await guest
    await world.rests()
    outcomes = [each.outcome for each in world.attempts]
    assert outcomes == [*[Outcome.POSTPONED] * 3, Outcome.LIVE]
    waits = [str(a.reason.message) for a in world.attempts if a.reason]
    assert [w.split(" s after")[0].split()[-1] for w in waits] == ["0.1", "0.2", "0.4"]
