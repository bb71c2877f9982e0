"""An attempt that overlaps, against every fault at every step; nobody is ever held for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload import failpoints
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import CheckpointCorrupt, NotEnoughMemory, SourceUnavailable
from hotreload.events import GenerationLive
from hotreload.types import GateState, Noise, Outcome, Phase, Revision
from tests.core.overlapping import Overlapping
from tests.fakes import HANG, lost
from tests.waiting import turn_until

NEW = Revision("new", "step_1")
BAD = Revision("rotten", "step_1_bad")


@pytest.fixture
def world(tmp_path: Path) -> Overlapping:
    return Overlapping(tmp_path)


async def assert_whole(world: Overlapping, says: str) -> None:
    """Open, nobody inside, nobody ever held, and no set of weights more than there is use for."""
    assert world.gate.state is GateState.OPEN
    assert (world.gate.inside, world.gate.held) == (0, 0)
    assert not world.was_held()
    await world.only_one_answers()
    assert world.engine.sets_held == (2 if world.replica.previous else 1)
    assert world.replica.staged is None
    assert world.replica.live.revision.id == world.engine.live.revision.id == says
    assert await world.ask() == f"{world.replica.live.number}: {says} clean"


async def test_a_good_checkpoint_is_proven_and_then_goes_live(world: Overlapping) -> None:
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
        assert await world.ask() == "2: new clean"
        await assert_whole(world, "new")
    assert world.engine.proofs == ["new clean"]
    assert (attempt.pause_seconds, attempt.rolled_back) == (0.0, False)
    assert attempt.fingerprints == ("fp-first", "fp-new")
    assert list(attempt.phases) == [
        Phase.FETCHING,
        Phase.VALIDATING,
        Phase.STAGING,
        Phase.PROBING,
        Phase.SWAPPING,
    ]


async def test_who_is_inside_ends_under_the_weights_it_began_under(world: Overlapping) -> None:
    async with world.running():
        async with world.client() as old:
            world.source.publish(NEW)
            await world.attempted()
            async with world.client() as young:
                assert world.answering == {2: 1, 1: 1}
                assert (old.generation, young.generation) == (1, 2)
                assert await old.goes_on() == "first clean"
                assert await young.goes_on() == "new clean"
            assert world.ended == []
            assert world.answering == {2: 0, 1: 1}
        await world.until(lambda: world.ended == [1])
        await assert_whole(world, "new")
        assert world.answering == {2: 0}


async def test_who_comes_while_a_checkpoint_is_staged_and_proven_waits_for_nothing(
    world: Overlapping,
) -> None:
    for step in ("stage", "prove", "flip"):
        world.steps.faults[step] = HANG
    async with world.running():
        world.source.publish(NEW)
        for step in ("stage", "prove", "flip"):
            await world.steps.entered[step].wait()
            assert await world.ask() == "1: first clean"
            world.steps.released[step].set()
        await world.attempted()
        await assert_whole(world, "new")


async def test_it_is_told_when_the_gate_knows_it(world: Overlapping) -> None:
    told: list[tuple[int, int]] = []

    def listen(event: object) -> None:
        if isinstance(event, GenerationLive):
            told.append((event.generation.number, world.gate.list_answering()[0].generation.number))

    world.subscribe(listen)
    async with world.running():
        world.source.publish(NEW)
        await world.attempted()
    assert told == [(2, 2)]


async def test_who_waits_for_a_generation_is_answered_at_the_flip(world: Overlapping) -> None:
    async def wait_for_it() -> int:
        async with world.gate.admit(at_least=2, within=5) as lease:
            assert lease.weights is world.engine.live
            return lease.generation.number

    async with world.running(), world.client():
        waiting = asyncio.create_task(wait_for_it())
        await turn_until(lambda: world.gate.awaiting == 1)
        world.source.publish(NEW)
        assert await waiting == 2


async def test_bad_weights_are_rejected_and_nobody_noticed(world: Overlapping) -> None:
    async with world.running():
        async with world.client() as client:
            world.source.publish(BAD)
            attempt = await world.attempted()
            assert await client.goes_on() == "first clean"
        assert (attempt.outcome, attempt.rolled_back) == (Outcome.REJECTED, False)
        assert attempt.reason is not None
        assert attempt.reason.code == "probe"
        assert Phase.SWAPPING not in attempt.phases
        assert not world.steps.entered["flip"].is_set()
        assert world.engine.scrubs == 0
        await assert_whole(world, "first")
    assert "rotten" in world.restarted_ledger().refused


async def test_a_proof_that_hangs_is_a_bad_answer(world: Overlapping) -> None:
    world.steps.faults["prove"] = HANG
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert attempt.reason is not None
        assert attempt.reason.code == "probe"
        assert "probe_timeout" in attempt.reason.message
        await assert_whole(world, "first")


async def test_no_room_for_the_proof_says_nothing_about_the_weights(world: Overlapping) -> None:
    world.steps.faults["prove"] = [NotEnoughMemory("no room for a shadow")]
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert (attempt.outcome, attempt.reason and attempt.reason.code) == (
            Outcome.POSTPONED,
            "oom",
        )
        await assert_whole(world, "first")


STEPS = ("fetch", "validate", "stage", "prove", "flip")
ERRORS = {
    "rejected": (CheckpointCorrupt("model.safetensors: cut short"), Outcome.REJECTED, "corrupt"),
    "try again": (SourceUnavailable("the folder is away"), Outcome.POSTPONED, "source"),
    "a bug of ours": (RuntimeError("oops"), Outcome.REJECTED, "internal"),
    "an OS error": (OSError(5, "Input/output error"), Outcome.REJECTED, "internal"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
async def test_after_any_error_at_any_step_the_old_weights_answer(
    world: Overlapping, step: str, kind: str
) -> None:
    error, outcome, code = ERRORS[kind]
    world.steps.faults[step] = [error]
    async with world.running():
        async with world.client() as client:
            world.source.publish(NEW)
            attempt = await world.attempted()
            assert await client.goes_on() == "first clean"
        if step == "prove" and code == "internal":
            code = "probe"  # whatever breaks a probe is a bad answer
        assert (attempt.outcome, attempt.reason and attempt.reason.code) == (outcome, code)
        await assert_whole(world, "first")
        world.source.publish(Revision("after", "step_2"))
        assert (await world.attempted(2)).outcome is Outcome.LIVE
        await assert_whole(world, "after")


POINTS = ("staging", "staged", "probing", "proven", "swapping", "flipped", "committed", "saved")


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize("point", POINTS)
async def test_a_fault_of_ours_at_any_point_leaves_one_set_that_answers(
    world: Overlapping, point: str
) -> None:
    failpoints.arm(f"{point}=raise:RuntimeError")
    async with world.running():
        async with world.client() as client:
            world.source.publish(NEW)
            if point == "saved":  # what was done is done, and the reconciler ends
                await world.attempted()
            else:
                attempt = await world.attempted()
                is_live = point == "committed"
                assert attempt.outcome is (Outcome.LIVE if is_live else Outcome.REJECTED)
            assert await client.goes_on() == "first clean"
        if point != "saved":
            await assert_whole(world, "new" if point == "committed" else "first")


@pytest.mark.parametrize("step", [*STEPS, "retire"])
async def test_a_lost_engine_seals_the_gate_and_ends_the_core(
    world: Overlapping, step: str
) -> None:
    world.steps.faults[step] = lost()
    world.source.publish(NEW)
    await world.loses_the_engine()
    outcome = Outcome.LIVE if step == "retire" else Outcome.LOST
    assert world.attempts[-1].outcome is outcome
    if step in ("prove", "flip", "retire"):
        assert world.gate.is_lost


async def test_a_flip_back_that_fails_loses_the_engine(world: Overlapping) -> None:
    real = world.engine.flip
    flips = 0

    async def flip(staged):  # type: ignore[no-untyped-def]
        nonlocal flips
        flips += 1
        if flips == 2:
            raise RuntimeError("the device is gone")
        return await real(staged)

    world.engine.flip = flip  # type: ignore[method-assign]
    failpoints.arm("flipped=raise:RuntimeError")
    try:
        world.source.publish(NEW)
        await world.loses_the_engine()
    finally:
        failpoints.arm("")
    assert world.gate.is_lost
    assert world.attempts[-1].outcome is Outcome.LOST


@pytest.mark.parametrize("step", ["fetch", "validate", "stage", "prove"])
async def test_a_cancel_before_the_flip_leaves_everything_as_it_was(
    world: Overlapping, step: str
) -> None:
    world.reconciler.rules = Rules(probe_timeout=5)
    world.steps.faults[step] = HANG
    async with world.running(), world.client() as client:
        world.source.publish(NEW)
        await world.steps.entered[step].wait()
        assert world.task is not None
        world.task.cancel()
        await asyncio.wait({world.task})
        assert await client.goes_on() == "first clean"
    await assert_whole(world, "first")
    assert not world.attempts
    assert world.restarted_ledger().under_way is None


async def test_a_cancel_during_the_flip_waits_for_its_end(world: Overlapping) -> None:
    world.steps.faults["flip"] = HANG
    async with world.running(), world.client() as client:
        world.source.publish(NEW)
        await world.steps.entered["flip"].wait()
        assert world.task is not None
        world.task.cancel()
        await asyncio.sleep(0)
        world.steps.released["flip"].set()
        await asyncio.wait({world.task})
        assert await client.goes_on() == "first clean"
        assert await world.ask() == "2: new clean"
    assert world.attempts[-1].outcome is Outcome.LIVE
    last_good = world.restarted_ledger().last_good
    assert last_good is not None
    assert last_good.revision == NEW


async def test_a_pin_holds_up_to_the_flip(world: Overlapping) -> None:
    world.steps.faults["prove"] = HANG
    world.reconciler.rules = Rules(probe_timeout=5)
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered["prove"].wait()
        assert (await world.operator.pin()).number == 1
        assert world.attempts[-1].outcome is Outcome.SUPERSEDED
        await assert_whole(world, "first")


async def test_a_newer_wish_waits_once_a_checkpoint_is_staged(world: Overlapping) -> None:
    world.steps.faults["prove"] = HANG
    world.reconciler.rules = Rules(probe_timeout=5)
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered["prove"].wait()
        world.source.publish(Revision("newer", "step_2"))
        await world.source.heard()
        world.steps.released["prove"].set()
        await world.attempted(2)
        assert [each.revision.id for each in world.attempts] == ["new", "newer"]
        await assert_whole(world, "newer")


async def test_noise_goes_live_unproven_and_what_it_is_put_on_still_answers(
    world: Overlapping,
) -> None:
    loud = Noise(seed=7, scale=5.0, num_leaves=1)
    async with world.running():
        async with world.client() as client:
            attempt = await (await world.operator.perturb(loud))
            assert attempt.outcome is Outcome.LIVE
            assert (await world.ask()).startswith("2: first with Noise(seed=7")
            assert client.generation == 1
        assert world.engine.proofs == []
        assert list(attempt.phases) == [Phase.STAGING, Phase.SWAPPING]
        assert not world.was_held()


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_what_was_live_is_kept_as_the_operator_decided(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep))
    async with world.running():
        for number in range(3):
            world.source.publish(Revision(f"r{number}", f"step_{number}"))
            await world.attempted(number + 1)
        await world.until(lambda: world.ended == [1, 2, 3])
        await assert_whole(world, "r2")
    previous = world.replica.previous
    if keep is KeepPrevious.NONE:
        assert previous is None
    else:
        assert previous is not None
        assert previous.revision.id == "r1"
        assert previous.weights.is_on_device is (keep is KeepPrevious.DEVICE)


async def test_a_stop_while_bad_weights_are_freed_does_not_forget_that_they_are_bad(
    world: Overlapping,
) -> None:
    world.steps.faults["release"] = HANG
    async with world.running():
        world.source.publish(BAD)
        await world.steps.entered["release"].wait()
        assert world.task is not None
        world.task.cancel()
        world.steps.released["release"].set()
        await asyncio.wait({world.task})
    assert world.restarted_ledger().refused[BAD.id].reason.code == "probe"
