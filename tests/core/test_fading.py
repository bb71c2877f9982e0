"""Older generations while they still answer: their end, their room, and the way back to them."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from hotreload import failpoints
from hotreload.core import overlap
from hotreload.core.progress import WantedCheck
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import AnswerNonfinite, NotEnoughMemory
from hotreload.events import AnswersWithheld, GateChanged
from hotreload.types import GateState, Outcome, Phase, Revision
from tests.core.overlapping import Overlapping
from tests.fakes import HANG, OVERFLOWS_ON, lost
from tests.waiting import turn_until


def step(number: int, label: str = "") -> Revision:
    return Revision(f"r{number}", f"step_{number}{label}")


@pytest.fixture
def world(tmp_path: Path) -> Overlapping:
    return Overlapping(tmp_path)


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


async def goes_live(world: Overlapping, number: int) -> None:
    """Publish step `number`, and see it go live."""
    before = len(world.attempts)
    world.source.publish(step(number))
    attempt = await world.attempted(before + 1)
    assert attempt.outcome is Outcome.LIVE, attempt.reason


# --- the end ---------------------------------------------------------------------------------


async def test_old_weights_are_put_away_when_the_last_of_their_requests_has_its_answer(
    world: Overlapping,
) -> None:
    async with world.running():
        async with world.client() as one, world.client() as two:
            await goes_live(world, 1)
            await one.leaves()
            assert await two.goes_on() == "first clean"
            assert (world.ended, world.replica.previous) == ([], None)
            assert [each.weights.revision.id for each in world.replica.fading] == ["first"]
        await world.only_one_answers()
        assert world.ended == [1]
        assert world.replica.previous is not None
        assert world.replica.previous.revision.id == "first"


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize(
    ("fault", "keep"),
    [
        *(("ended", keep) for keep in KeepPrevious),
        ("stow", KeepPrevious.HOST),
        ("release", KeepPrevious.NONE),
    ],
)
async def test_a_fault_as_they_are_put_away_leaks_nothing_and_stops_nothing(
    tmp_path: Path, fault: str, keep: KeepPrevious
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep))
    if fault == "ended":
        failpoints.arm("ended=raise:RuntimeError")
    else:
        world.steps.faults[fault] = [NotEnoughMemory("the host is full")]
    async with world.running():
        await goes_live(world, 1)
        await world.only_one_answers()
        assert world.engine.sets_held == (2 if world.replica.previous else 1)
        failpoints.arm("")
        await goes_live(world, 2)
        await world.only_one_answers()
        assert await world.ask() == "3: r2 clean"
        assert world.ended == [1, 2]


async def test_an_end_that_hangs_keeps_nobody_from_being_answered(world: Overlapping) -> None:
    world.steps.faults["retire"] = HANG
    async with world.running():
        await goes_live(world, 1)
        await world.steps.entered["retire"].wait()
        assert await world.ask() == "2: r1 clean"
        assert (world.ended, len(world.replica.fading)) == ([], 1)
        world.steps.released["retire"].set()
        await world.only_one_answers()


@pytest.mark.parametrize("broken", [lost(), RuntimeError("oops")])
async def test_weights_that_cannot_be_retired_lose_the_engine(
    world: Overlapping, broken: Exception
) -> None:
    world.steps.faults["retire"] = broken
    world.source.publish(step(1))
    await world.loses_the_engine()
    assert world.gate.is_lost


async def test_a_stop_while_one_fades_lets_its_requests_end(world: Overlapping) -> None:
    async with world.running():
        async with world.client() as client:
            await goes_live(world, 1)
            world.gate.seal("hotreload is stopping", code="stopping")
            drained = asyncio.create_task(world.gate.wait_until_empty(5))
            assert await client.goes_on() == "first clean"
            assert not drained.done()
        await drained
        await world.only_one_answers()


async def test_an_engine_lost_while_one_fades_ends_everybody(world: Overlapping) -> None:
    async with world.running(), world.client() as old:
        await goes_live(world, 1)
        async with world.client() as young:
            world.engine.die()
            for client in (old, young):
                with pytest.raises(type(lost())):
                    await client.to_its_end()


# --- room ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sets", [2, 3])
@pytest.mark.parametrize("keep", KeepPrevious)
async def test_never_more_sets_are_on_the_device_than_there_may_be(
    tmp_path: Path, sets: Literal[2, 3], keep: KeepPrevious
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep, sets=sets))
    most = 0
    real = world.engine.stage

    async def stage(checkpoint):  # type: ignore[no-untyped-def]
        nonlocal most
        staged = await real(checkpoint)
        most = max(most, world.engine.sets_on_device)
        return staged

    world.engine.stage = stage  # type: ignore[method-assign]
    async with world.running():
        for number in range(1, 6):
            async with world.client():
                await goes_live(world, number)
        for number in range(6, 9):
            await goes_live(world, number)
    assert most == (sets if keep is KeepPrevious.DEVICE else min(sets, 3 if most > 2 else 2))


async def test_the_rollback_slot_goes_only_where_there_is_no_room_for_it(tmp_path: Path) -> None:
    world = Overlapping(tmp_path, Rules(sets=3))
    async with world.running():
        await goes_live(world, 1)
        await world.only_one_answers()
        world.steps.faults["prove"] = HANG
        world.source.publish(step(2))
        await world.steps.entered["prove"].wait()
        assert world.replica.previous is not None
        world.steps.released["prove"].set()
        await world.attempted(2)


async def test_a_checkpoint_waits_for_room_and_it_is_said_for_whom(world: Overlapping) -> None:
    async with world.running():
        async with world.client() as one, world.client():
            await goes_live(world, 1)
            world.source.publish(step(2))
            await world.until(lambda: world.status_phase is Phase.DRAINING)
            await world.until(lambda: world.waiting_for is not None)
            assert world.waiting_for == (
                "2 requests are still answered by generation 1: "
                "there is room for 2 sets of weights ([reload] sets)"
            )
            assert await world.ask() == "2: r1 clean"
            await one.leaves()
            assert len(world.attempts) == 1
        await world.attempted(2)
        assert world.waiting_for is None
        assert list(world.attempts[-1].phases)[:4] == [
            Phase.FETCHING,
            Phase.VALIDATING,
            Phase.DRAINING,
            Phase.STAGING,
        ]
        assert world.attempts[-1].pause_seconds == 0.0
        assert await world.ask() == "3: r2 clean"
        await world.only_one_answers()
        assert world.engine.sets_held == 2
    assert not world.was_held()


async def test_with_room_for_three_sets_a_checkpoint_does_not_wait_for_one_long_answer(
    tmp_path: Path,
) -> None:
    world = Overlapping(tmp_path, Rules(sets=3))
    async with world.running(), AsyncExitStack() as stack:
        first = await stack.enter_async_context(world.client())
        await goes_live(world, 1)
        second = await stack.enter_async_context(world.client())
        await goes_live(world, 2)
        assert world.answering == {3: 0, 2: 1, 1: 1}
        assert await second.goes_on() == "r1 clean"
        world.source.publish(step(3))
        await world.until(lambda: "generation 1:" in str(world.waiting_for))
        await second.leaves()  # it need not be the oldest that makes room
        await world.attempted(3)
        assert await first.goes_on() == "first clean"
        assert await world.ask() == "4: r3 clean"


async def test_younger_weights_are_kept_and_not_older_ones_that_end_after_them(
    tmp_path: Path,
) -> None:
    world = Overlapping(tmp_path, Rules(sets=3))
    async with world.running(), AsyncExitStack() as stack:
        first = await stack.enter_async_context(world.client())
        await goes_live(world, 1)
        second = await stack.enter_async_context(world.client())
        await goes_live(world, 2)
        await second.leaves()
        await world.until(lambda: world.ended == [2])
        await first.leaves()
        await world.only_one_answers()
        assert world.ended == [2, 1]
        assert world.replica.previous is not None
        assert world.replica.previous.revision == step(1)
        assert world.engine.sets_held == 2


async def several_answer(world: Overlapping, stack: AsyncExitStack, generations: int) -> list[Any]:
    """So many generations have a client each; the youngest is live."""
    clients = []
    for number in range(1, generations):
        clients.append(await stack.enter_async_context(world.client()))
        await goes_live(world, number)
    return [*clients, await stack.enter_async_context(world.client())]


@pytest.mark.parametrize(("fit", "room"), [(3, 3), (4, 4), (99, 6)])
async def test_by_memory_there_are_as_many_sets_as_it_holds_and_at_most_six(
    tmp_path: Path, fit: int, room: int
) -> None:
    world = Overlapping(tmp_path, Rules(sets="auto"))
    world.engine.sets_that_fit = fit
    async with world.running(), AsyncExitStack() as stack:
        clients = await several_answer(world, stack, room)
        world.source.publish(step(room))
        await world.until(lambda: world.waiting_for is not None)
        lack = "there is room for 6 sets of weights ([reload] sets)"
        if fit < 6:
            lack = "the device is full ([reload] sets = 'auto')"
        assert world.waiting_for == f"1 request is still answered by generation 1: {lack}"
        assert world.engine.sets_on_device == room
        await clients[1].leaves()
        assert (await world.attempted(room)).outcome is Outcome.LIVE
        assert await clients[0].goes_on() == "first clean"


async def test_memory_is_not_looked_at_for_a_number_of_sets_nor_for_the_second(
    tmp_path: Path,
) -> None:
    for sets in (3, "auto"):
        world = Overlapping(tmp_path, Rules(sets=sets))
        world.engine.sets_that_fit = 0
        async with world.running(), AsyncExitStack() as stack:
            await several_answer(world, stack, 2)
            assert not world.steps.entered["lacks_room"].is_set()
            world.source.publish(step(2))
            if sets == 3:
                assert (await world.attempted(2)).outcome is Outcome.LIVE
            else:
                await world.until(lambda: "the device is full" in str(world.waiting_for))  # noqa: B023


async def test_by_memory_what_is_kept_for_a_rollback_goes_before_anybody_waits(
    tmp_path: Path,
) -> None:
    world = Overlapping(tmp_path, Rules(sets="auto"))
    world.engine.sets_that_fit = 2
    async with world.running():
        await goes_live(world, 1)
        await world.only_one_answers()
        assert world.replica.previous is not None
        await goes_live(world, 2)
        assert Phase.DRAINING not in world.attempts[-1].phases


async def test_an_end_while_memory_is_looked_at_is_room(tmp_path: Path) -> None:
    world = Overlapping(tmp_path, Rules(sets="auto", keep_previous=KeepPrevious.NONE))
    world.engine.sets_that_fit = 2
    async with world.running():
        async with world.client():
            await goes_live(world, 1)
            world.steps.faults["lacks_room"] = HANG
            world.source.publish(step(2))
            await world.steps.entered["lacks_room"].wait()
        world.engine.sets_that_fit = 0
        await world.only_one_answers()
        world.steps.released["lacks_room"].set()
        assert (await world.attempted(2)).outcome is Outcome.LIVE


async def test_memory_that_others_give_back_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "LOOK_AGAIN", 0.01)
    world = Overlapping(tmp_path, Rules(sets="auto"))
    world.engine.sets_that_fit = 2
    async with world.running(), AsyncExitStack() as stack:
        old, _ = await several_answer(world, stack, 2)
        world.source.publish(step(2))
        await world.until(lambda: world.waiting_for is not None)
        world.engine.sets_that_fit = 3
        assert (await world.attempted(2)).outcome is Outcome.LIVE
        assert await old.goes_on() == "first clean"


async def test_each_newer_wish_takes_the_place_of_one_that_waits_for_room(
    world: Overlapping,
) -> None:
    """Twice in a row, too: what waits does nothing that would be lost."""
    async with world.running():
        async with world.client():
            await goes_live(world, 1)
            for number in range(2, 6):
                world.source.publish(step(number))
                await world.until(
                    lambda number=number: (
                        world.ledger.under_way == step(number)  # type: ignore[misc]
                        and world.waiting_for is not None
                    )
                )
            outcomes = [each.outcome for each in world.attempts]
            assert outcomes == [Outcome.LIVE, *[Outcome.SUPERSEDED] * 3]
        attempt = await world.attempted(5)
        assert (attempt.outcome, attempt.revision) == (Outcome.LIVE, step(5))


async def test_a_newer_wish_takes_the_place_of_one_that_waits_for_room(world: Overlapping) -> None:
    async with world.running():
        async with world.client():
            await goes_live(world, 1)
            world.source.publish(step(2))
            await world.until(lambda: world.waiting_for is not None)
            world.source.publish(step(3))
            await world.attempted(2)
            assert world.attempts[-1].outcome is Outcome.SUPERSEDED
            await world.until(lambda: world.waiting_for is not None)
        await world.attempted(3)
        assert await world.ask() == "3: r3 clean"


async def test_old_answers_that_take_too_long_put_a_checkpoint_off(tmp_path: Path) -> None:
    world = Overlapping(tmp_path, Rules(finish_timeout=0.01))
    async with world.running():
        async with world.client() as client:
            await goes_live(world, 1)
            world.source.publish(step(2))
            attempt = await world.attempted(2)
            assert attempt.outcome is Outcome.POSTPONED
            assert attempt.reason is not None
            assert attempt.reason.code == "drain"
            assert "1 request is still answered by generation 1, 0.01 s" in attempt.reason.message
            assert await client.goes_on() == "first clean"
            assert world.engine.aborts == 0
        await world.only_one_answers()
        world.now += 1000
        world.source.publish(step(3))
        assert (await world.attempted(3)).outcome is Outcome.LIVE


async def test_old_answers_that_take_too_long_are_aborted_if_so_decided(tmp_path: Path) -> None:
    world = Overlapping(tmp_path, Rules(finish_timeout=0.01, on_drain_timeout="abort"))
    async with world.running(), AsyncExitStack() as stack:
        old = await stack.enter_async_context(world.client())
        await goes_live(world, 1)
        young = await stack.enter_async_context(world.client())
        hearing = asyncio.create_task(old.to_its_end())
        await goes_live(world, 2)
        assert await hearing == "first clean"
        assert old.was_cut_short
        assert await young.goes_on() == "r1 clean"
        assert not young.was_cut_short
        assert world.engine.aborts == 1


async def test_who_does_not_leave_when_aborted_puts_a_checkpoint_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "ABORT_GRACE", 0.01)
    world = Overlapping(tmp_path, Rules(finish_timeout=0.01, on_drain_timeout="abort"))
    async with world.running(), world.client():
        await goes_live(world, 1)
        world.source.publish(step(2))
        assert (await world.attempted(2)).outcome is Outcome.POSTPONED
        assert await world.ask() == "2: r1 clean"


# --- the way back ----------------------------------------------------------------------------


async def test_a_rollback_finds_the_old_weights_still_answering(world: Overlapping) -> None:
    async with world.running():
        async with world.client() as old:
            await goes_live(world, 1)
            async with world.client() as young:
                attempt = await (await world.operator.rollback())
                assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 3)
                assert list(attempt.phases) == [Phase.STAGING, Phase.SWAPPING]
                assert await world.ask() == "3: first clean"
                assert await old.goes_on() == "first clean"
                assert await young.goes_on() == "r1 clean"
                assert world.answering == {3: 0, 2: 1, 1: 1}
            await world.until(lambda: world.ended == [2])
            assert world.answering == {3: 0, 1: 1}
        assert world.engine.sets_held == 2
        assert not world.was_held()
        await goes_live(world, 2)
        await world.only_one_answers()
        assert world.ended == [2, 1, 3]


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_a_rollback_after_the_old_weights_have_ended(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep))
    async with world.running():
        await goes_live(world, 1)
        await world.only_one_answers()
        async with world.client() as client:
            attempt = await (await world.operator.rollback())
            assert attempt.outcome is Outcome.LIVE
            assert (Phase.FETCHING in attempt.phases) is (keep is KeepPrevious.NONE)
            assert await client.goes_on() == "r1 clean"
            assert await world.ask() == "3: first clean"
            assert world.replica.previous is None
        await world.only_one_answers()
        assert world.engine.sets_held == (1 if keep is KeepPrevious.NONE else 2)


@pytest.mark.parametrize("keep", KeepPrevious)
async def test_a_rollback_that_comes_as_the_old_weights_end_finds_them_or_loads_them(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep))
    world.steps.faults["retire"] = HANG
    async with world.running():
        await goes_live(world, 1)
        await world.steps.entered["retire"].wait()
        order = await world.operator.rollback()
        world.steps.faults.pop("retire")
        world.steps.released["retire"].set()
        assert (await order).outcome is Outcome.LIVE
        assert await world.ask() == "3: first clean"
        await world.only_one_answers()
        assert world.engine.sets_held == (1 if keep is KeepPrevious.NONE else 2)


@pytest.mark.parametrize("fault", ["unstow", "flip"])
@pytest.mark.parametrize("keep", [KeepPrevious.DEVICE, KeepPrevious.HOST])
@pytest.mark.parametrize("is_fading", [True, False])
async def test_a_rollback_that_fails_can_be_asked_for_again(
    tmp_path: Path, fault: str, keep: KeepPrevious, is_fading: bool
) -> None:
    world = Overlapping(tmp_path, Rules(keep_previous=keep))
    async with world.running(), AsyncExitStack() as stack:
        if is_fading:
            await stack.enter_async_context(world.client())
        await goes_live(world, 1)
        if not is_fading:
            await world.only_one_answers()
        world.steps.faults[fault] = [RuntimeError("oops")]
        failed = await (await world.operator.rollback())
        assert (failed.outcome, failed.reason and failed.reason.code) == (
            Outcome.POSTPONED,
            "internal",
        )
        assert await world.ask() == "2: r1 clean"
        held = [each.is_on_device for each in world.engine.weights_held]
        assert held.count(False) == (keep is KeepPrevious.HOST and not is_fading)
        again = await (await world.operator.rollback(1))
        assert again.outcome is Outcome.LIVE
        assert Phase.FETCHING not in again.phases
        assert await world.ask() == "3: first clean"


async def test_a_rollback_does_not_wait_for_what_waits_for_room(world: Overlapping) -> None:
    async with world.running(), world.client() as client:
        await goes_live(world, 1)
        world.source.publish(step(2))
        await world.until(lambda: world.waiting_for is not None)
        attempt = await (await world.operator.rollback(1))
        assert attempt.outcome is Outcome.LIVE
        assert [each.outcome for each in world.attempts] == [
            Outcome.LIVE,
            Outcome.SUPERSEDED,
            Outcome.LIVE,
        ]
        assert await client.goes_on() == "first clean"


# --- answers that are no numbers -------------------------------------------------------------


def told(world: Overlapping) -> list[int]:
    events = (each for each in world.happened if isinstance(each, AnswersWithheld))
    return [each.generation.number for each in events]


async def test_the_cleaning_waits_for_everybody_also_under_the_old_weights(
    world: Overlapping,
) -> None:
    async with world.running(heeds=True):
        async with world.client() as old:
            await goes_live(world, 1)
            world.engine.withhold()
            await world.until(lambda: world.gate.state is GateState.HOLDING)
            assert world.engine.scrubs == 0
            await old.leaves()
        await turn_until(lambda: world.engine.scrubs == 1)
        assert await world.ask() == "2: r1 clean"
        await world.only_one_answers()
    assert world.replica.live.revision == step(1)


async def test_the_live_weights_are_not_left_for_what_the_old_ones_may_have_made(
    world: Overlapping,
) -> None:
    async with world.running(heeds=True):
        async with world.client():
            await goes_live(world, 1)
            world.engine.withhold()
            await turn_until(lambda: world.engine.aborts == 1)
        await turn_until(lambda: world.engine.scrubs == 1)
        await world.only_one_answers()
        world.engine.withhold()  # now it can only be the live ones
        attempt = await world.attempted(2)
        assert attempt.revision.id == "first"


async def test_a_flip_that_came_first_has_cleaned_nothing(world: Overlapping) -> None:
    world.steps.faults["flip"] = HANG
    async with world.running(heeds=True):
        world.source.publish(step(1))
        await world.steps.entered["flip"].wait()
        world.engine.withhold()
        await world.until(lambda: told(world) == [1])
        world.steps.released["flip"].set()
        await turn_until(lambda: world.engine.scrubs == 1)
        assert await world.ask() == "2: r1 clean"
        assert len(world.attempts) == 1


async def test_a_flip_waits_for_the_cleaning(world: Overlapping) -> None:
    world.steps.faults["scrub"] = HANG
    async with world.running(heeds=True):
        world.engine.withhold()
        await world.steps.entered["scrub"].wait()
        world.source.publish(step(1))
        await world.steps.entered["prove"].wait()
        await asyncio.sleep(0.01)
        assert not world.steps.entered["flip"].is_set()
        world.steps.faults.pop("scrub")
        world.steps.released["scrub"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE


async def test_a_pin_still_holds_while_a_flip_waits_for_the_cleaning(world: Overlapping) -> None:
    world.steps.faults["scrub"] = HANG
    async with world.running(heeds=True):
        world.engine.withhold()
        await world.steps.entered["scrub"].wait()
        world.source.publish(step(1))
        await turn_until(lambda: bool(world.engine.proofs))
        pinning = asyncio.create_task(world.operator.pin())
        await turn_until(lambda: world.ledger.pinned)
        world.steps.released["scrub"].set()
        assert (await pinning).number == 1
        assert world.attempts[-1].outcome is Outcome.SUPERSEDED
        assert await world.ask() == "1: first clean"
        assert world.engine.sets_held == 1


async def test_weights_that_overflow_are_left_by_a_flip(world: Overlapping) -> None:
    async with world.running(heeds=True):
        world.source.publish(step(1, "_overflow"))
        await world.attempted()
        await world.only_one_answers()
        async with world.gate.admit() as lease:
            asked = await lease.engine.prepare({"text": OVERFLOWS_ON})
            with pytest.raises(AnswerNonfinite):
                await anext(lease.engine.generate(asked, lease.weights))
        attempt = await world.attempted(2)
        assert (attempt.outcome, attempt.revision.id) == (Outcome.LIVE, "first")
        assert await world.ask() == "3: first clean"
    states = [e.state for e in world.happened if isinstance(e, GateChanged)]
    assert states.count(GateState.HOLDING) == 1  # for the cleaning, not for the way back


async def test_an_end_that_comes_as_soon_as_it_is_waited_for_is_not_missed(
    world: Overlapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = world.replica.fewer_fade

    async def not_less_than_none(than: int) -> None:
        assert than > 0, "fewer than none never fade"
        await waited(than)

    monkeypatch.setattr(world.replica, "fewer_fade", not_less_than_none)
    during = WantedCheck.run_while_wanted

    async def after_the_end(self: WantedCheck, making: Any, *more: Any) -> Any:
        if world.status_phase is Phase.DRAINING and world.replica.fading:
            world.replica.end(world.replica.fading[0])
        return await during(self, making, *more)

    monkeypatch.setattr(WantedCheck, "run_while_wanted", after_the_end)
    async with world.running(), world.client():
        await goes_live(world, 1)
        await goes_live(world, 2)
