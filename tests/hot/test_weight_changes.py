"""Weights in a program's hands: staged, proven, live, rolled back, by the daemon's switches."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hotreload.errors import (
    BadRequest,
    Busy,
    DrainTimedOut,
    EngineLost,
    NothingOfThatName,
    NotServing,
    ProbeFailed,
    Superseded,
)
from hotreload.types import Mode, Revision
from tests.fakes import HANG, lost, unread
from tests.hot.program import Program, running
from tests.waiting import turn_until


@pytest_asyncio.fixture(params=Mode)
async def program(request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    async with running(request.param) as program:
        yield program


only_overlap = pytest.mark.parametrize("program", [Mode.OVERLAP], indirect=True)
only_drain = pytest.mark.parametrize("program", [Mode.DRAIN], indirect=True)


async def test_staged_weights_answer_nobody_until_they_are_flipped_to(program: Program) -> None:
    staged = await program.stage("step 1")
    assert (staged.name, staged.fingerprint, staged.is_held) == ("step 1", "fp-step 1", True)
    assert program.says == "first"
    generation = await staged.flip()
    assert (generation.number, program.says, staged.is_held) == (2, "step 1", False)
    assert staged.generation == generation == program.replica.live


async def test_what_is_staged_is_released_at_the_end_of_its_block(program: Program) -> None:
    async with await program.stage("step 1") as staged:
        assert program.engine.sets_held == 2
    assert not staged.is_held
    assert (program.says, program.engine.sets_held) == ("first", 1)
    with pytest.raises(BadRequest, match="step 1 is no longer staged: it was released"):
        await staged.flip()


async def test_what_went_live_outlives_its_block(program: Program) -> None:
    async with await program.stage("step 1") as staged:
        await staged.flip()
    assert program.says == "step 1"
    with pytest.raises(BadRequest, match="it went live as generation 2"):
        await staged.flip()


async def test_one_set_is_staged_at_a_time(program: Program) -> None:
    staged = await program.stage("step 1")
    with pytest.raises(Busy, match=r"step 1 is staged .* free it by hot\.staged\.release\(\)"):
        await program.stage("step 2")
    await staged.release()
    assert await program.update("step 2") == 2


async def test_what_nobody_has_any_more_is_freed(program: Program) -> None:
    staged = await program.stage("step 1")
    assert program.changes.staged is staged
    in_a_thread = threading.Thread(target=[staged].clear)  # which may be the one that drops them
    del staged
    in_a_thread.start()
    await asyncio.to_thread(in_a_thread.join)
    del in_a_thread
    assert program.changes.staged is None
    await turn_until(lambda: program.engine.sets_held == 1)


async def test_what_nobody_has_keeps_no_other_weights_out(program: Program) -> None:
    for number in range(3):
        await program.stage(f"step {number}")
    assert await program.update("step 3") == 2
    await program.rested()
    assert program.engine.sets_held == 2  # live, and the way back


async def test_what_is_flipped_to_may_be_forgotten(program: Program) -> None:
    await (await program.stage("step 1")).flip()
    await program.rested()
    await program.stage("step 2")
    await turn_until(lambda: program.engine.sets_held == 1)
    assert program.says == "step 1"


async def test_bad_weights_never_stay_live_and_are_released(program: Program) -> None:
    staged = await program.stage("bad step")
    with pytest.raises(ProbeFailed):
        await staged.flip()
    assert (staged.is_held, staged.generation) == (False, None)
    assert (program.says, program.engine.sets_held) == ("first", 1)
    assert await program.update("step 1") == 2


@only_overlap
async def test_a_probe_asks_before_anything_is_live_and_once(program: Program) -> None:
    staged = await program.stage("step 1")
    await staged.probe()
    assert staged.is_proven
    assert program.says == "first"
    await staged.flip()
    assert len(program.engine.proofs) == 1


@only_overlap
async def test_weights_that_failed_a_probe_are_released(program: Program) -> None:
    staged = await program.stage("bad step")
    with pytest.raises(ProbeFailed):
        await staged.probe()
    assert not staged.is_held
    assert program.engine.sets_held == 1


@only_drain
async def test_where_swaps_drain_it_is_said_that_a_probe_asks_when_they_are_live(
    program: Program,
) -> None:
    staged = await program.stage("step 1")
    with pytest.raises(BadRequest, match="can be asked only once it is live"):
        await staged.probe()
    assert not staged.is_proven
    await staged.flip()
    assert staged.is_proven


@only_drain
async def test_a_drain_that_takes_too_long_leaves_the_weights_staged(program: Program) -> None:
    staged = await program.stage("step 1")
    async with program.gate.admit():
        with pytest.raises(DrainTimedOut):
            await staged.flip()
        assert staged.is_held
    assert (await staged.flip()).number == 2


async def test_a_flip_that_is_cancelled_too_late_has_gone_live(program: Program) -> None:
    change = CHANGES[program.replica.mode]
    program.steps.faults[change] = HANG
    staged = await program.stage("step 1")
    flipping = asyncio.create_task(staged.flip())
    await program.steps.entered[change].wait()
    flipping.cancel()
    await asyncio.sleep(0)
    program.steps.released[change].set()
    with pytest.raises(asyncio.CancelledError):
        await flipping
    assert (program.says, staged.is_held, program.replica.live.number) == ("step 1", False, 2)
    await program.rested()
    assert await program.rollback() is not None


# --- the way back -----------------------------------------------------------------------------


async def test_a_rollback_goes_further_back_each_time(program: Program) -> None:
    await program.update("step 1")
    await program.rested()
    await program.update("step 2")
    await program.rested()
    live = await program.rollback()
    assert (live.number, program.says) == (4, "step 1")
    place = program.changes.place_to_go_back_to(None)
    assert (place.number, place.path) == (1, "model")  # and not step 2, which was left


async def test_a_rollback_without_a_number_jumps_over_nothing(program: Program) -> None:
    for name in ("step 1", "step 2"):
        program.in_memory(await program.update(name))
        await program.rested()
    await program.replica.forget_previous()
    words = r"generation 2 \(step 1\), the one before, is no longer in memory and has no files"
    with pytest.raises(BadRequest, match=rf"{words}; there is still 1 \(step 0, from model\)"):
        await program.rollback()
    assert program.says == "step 2"


async def test_where_there_is_nothing_to_go_back_to_that_is_said(program: Program) -> None:
    with pytest.raises(BadRequest, match="there is nothing before generation 1 to go back to"):
        await program.rollback()
    program.in_memory(1)
    await program.update("step 1")
    await program.rested()
    await program.replica.forget_previous()
    with pytest.raises(BadRequest, match="nor is there any other: stage its weights again"):
        await program.rollback()


async def test_a_number_that_nobody_knows_is_said(program: Program) -> None:
    with pytest.raises(NothingOfThatName, match="generation 9 is not remembered; known are 1"):
        await program.rollback(9)
    with pytest.raises(BadRequest, match="generation 1 is live already"):
        await program.rollback(1)


async def test_a_rollback_overrules_a_load_that_hangs(program: Program) -> None:
    await program.update("step 1")
    await program.rested()
    program.steps.faults["stage"] = HANG
    staging = asyncio.create_task(program.stage("step 2"))
    await program.steps.entered["stage"].wait()
    program.steps.entered["stage"].clear()
    await turn_until(lambda: program.engine.staging_progress is not None)
    await program.rollback(1)
    with pytest.raises(Superseded):
        await staging


async def test_a_rollback_overrules_an_update_at_whatever_it_is(program: Program) -> None:
    await program.update("step 1")
    await program.rested()
    asked = program.changes.rollbacks
    staged = await program.stage("step 2")
    program.changes.overrule()
    with pytest.raises(Superseded):
        await staged.flip_since(asked)
    await staged.release()
    with pytest.raises(Superseded):  # it was still being checked
        await program.changes.stage(unread(Revision("step 3", "step 3")), asked)
    assert program.says == "step 1"
    assert await program.update("step 4") == 3


async def test_who_flips_after_a_rollback_means_it(program: Program) -> None:
    await program.update("step 1")
    await program.rested()
    staged = await program.stage("step 2")
    program.changes.overrule()
    await staged.flip()
    assert program.says == "step 2"


# --- the end ----------------------------------------------------------------------------------


async def test_the_end_gives_up_a_load_and_waits_for_that(program: Program) -> None:
    program.steps.faults["stage"] = HANG
    staging = asyncio.create_task(program.stage("step 1"))
    await program.steps.entered["stage"].wait()
    await turn_until(lambda: program.engine.staging_progress is not None)
    program.gate.seal("closed")
    await program.changes.end()
    assert program.engine.staging_progress is None
    with pytest.raises(NotServing, match="closed meanwhile"):
        await staging
    with pytest.raises(NotServing, match="closed"):
        await program.stage("step 2")


async def test_the_end_waits_for_a_change_that_cannot_be_given_up(program: Program) -> None:
    change = CHANGES[program.replica.mode]
    program.steps.faults[change] = HANG
    staged = await program.stage("step 1")
    flipping = asyncio.create_task(staged.flip())
    await program.steps.entered[change].wait()
    ending = asyncio.create_task(program.changes.end())
    await asyncio.sleep(0)
    assert not ending.done()
    program.steps.released[change].set()
    await ending
    assert (await flipping).number == 2


async def test_the_end_frees_what_is_staged(program: Program) -> None:
    staged = await program.stage("step 1")
    await program.changes.end()
    assert not staged.is_held
    assert program.engine.sets_held == 1


# --- an engine that is lost -------------------------------------------------------------------


CHANGES = {Mode.OVERLAP: "flip", Mode.DRAIN: "exchange"}


async def test_a_lost_engine_lets_nobody_in_and_nothing_of_it_is_touched(program: Program) -> None:
    program.steps.faults[CHANGES[program.replica.mode]] = lost()
    staged = await program.stage("step 1")
    with pytest.raises(EngineLost):
        await staged.flip()
    assert program.gate.is_lost
    assert not staged.is_held
    assert program.engine.sets_held == 2  # the process ends with both
