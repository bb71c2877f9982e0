import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import BadRequest, Busy, EngineLost, NothingOfThatName, SourceUnavailable
from hotreload.events import PhaseEntered, RevisionWanted
from hotreload.types import Noise, Outcome, Phase, Revision
from tests.core.conftest import World
from tests.fakes import HANG, lost

ONE, TWO, THREE = (Revision(f"r{n}", f"step_{n}") for n in (1, 2, 3))
BAD = Revision("rotten", "step_9_bad")


async def test_the_newest_wish_supersedes_one_that_is_only_staged(world: World) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["stage"].wait()
        world.source.publish(TWO)
        await world.until(lambda: RevisionWanted(TWO) in world.happened)
        del world.steps.faults["stage"]
        world.steps.released["stage"].set()
        await world.attempted(2)
    assert [a.outcome for a in world.attempts] == [Outcome.SUPERSEDED, Outcome.LIVE]
    assert world.replica.live.revision == TWO


async def test_something_goes_live_however_fast_the_wishes_come(world: World) -> None:
    real = world.engine.stage
    count = 0

    async def stage(checkpoint):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        world.source.publish(Revision(f"storm{count}", f"step_{100 + count}"))
        staged = await real(checkpoint)
        await world.source.heard()
        return staged

    world.engine.stage = stage  # type: ignore[method-assign]
    async with world.running():
        world.source.publish(ONE)
        await world.attempted(10)
    outcomes = [a.outcome for a in world.attempts]
    assert Outcome.LIVE in outcomes[:3]
    for first, second in pairwise(outcomes):
        assert (first, second) != (Outcome.SUPERSEDED, Outcome.SUPERSEDED)


async def test_a_refused_revision_is_not_tried_twice(world: World) -> None:
    async with world.running():
        world.source.publish(BAD)
        await world.attempted()
        world.source.publish(Revision(BAD.id, "the same bytes, renamed, _bad"))
        await world.until(lambda: "refused" in str(world.waiting_for))
    assert len(world.attempts) == 1


async def test_an_operator_asks_for_a_revision_and_hears_how_it_ended(world: World) -> None:
    world.source.known[ONE.label] = ONE
    async with world.running():
        attempt = await (await world.operator.reload(ONE.label))
    assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)


async def test_asking_for_what_is_live_changes_nothing(world: World) -> None:
    async with world.running():
        attempt = await (await world.operator.reload("step_0"))
    assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 1)
    assert not world.attempts


async def test_asking_for_a_refused_revision_repeats_the_reason_unless_forced(
    world: World,
) -> None:
    async with world.running():
        world.source.publish(BAD)
        await world.attempted()
        again = await (await world.operator.reload(BAD.label))
        assert again.outcome is Outcome.REJECTED
        assert again.reason is not None
        assert "force" in again.reason.message
        assert len(world.attempts) == 1
        await (await world.operator.reload(BAD.label, force=True))
        assert len(world.attempts) == 2


async def test_asking_twice_is_one_attempt_and_asking_for_another_is_busy(world: World) -> None:
    world.source.known |= {ONE.label: ONE, TWO.label: TWO}
    world.steps.faults["stage"] = HANG
    async with world.running():
        first = await world.operator.reload(ONE.label)
        await world.steps.entered["stage"].wait()
        assert await world.operator.reload(ONE.label) is first
        with pytest.raises(Busy, match="step_1"):
            await world.operator.reload(TWO.label)
        del world.steps.faults["stage"]
        world.steps.released["stage"].set()
        assert (await first).outcome is Outcome.LIVE
    assert len(world.attempts) == 1


async def test_an_unknown_name_is_the_sources_word(world: World) -> None:
    async with world.running():
        with pytest.raises(SourceUnavailable):
            await world.operator.reload("step_77")


async def test_what_an_operator_made_live_stays_until_the_source_wishes_anew(
    world: World,
) -> None:
    async with world.running():
        world.source.publish(TWO)
        await world.attempted()
        world.source.known[ONE.label] = ONE
        await (await world.operator.reload(ONE.label))
        await world.rests()
        assert world.replica.live.revision == ONE
        world.source.publish(THREE)
        await world.attempted(3)
    assert world.replica.live.revision == THREE


@pytest.mark.parametrize("keep", [KeepPrevious.DEVICE, KeepPrevious.HOST])
async def test_a_rollback_from_memory_loads_nothing_and_is_a_new_generation(
    tmp_path: Path, keep: KeepPrevious
) -> None:
    world = World(tmp_path, Rules(keep_previous=keep))
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.entered["stage"].clear()
        attempt = await (await world.operator.rollback())
        assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 3)
        assert not world.steps.entered["stage"].is_set()
        assert world.engine.answer() == "first clean"
        assert world.engine.scrubs == 2  # at every change of weights
        await world.rests()
        assert world.replica.live.revision.id == "first"
    ledger = world.restarted_ledger()
    assert ledger.refused["r1"].reason.code == "rolled_back"
    assert ledger.last_good is not None
    assert ledger.last_good.revision.id == "first"


async def test_a_rollback_without_memory_loads_the_files_again(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(keep_previous=KeepPrevious.NONE))
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.entered["stage"].clear()
        attempt = await (await world.operator.rollback())
        assert world.steps.entered["stage"].is_set()
    assert attempt.generation == 3
    assert world.replica.live.revision.id == "first"


async def test_a_rollback_to_a_named_generation(world: World) -> None:
    async with world.running():
        for count, revision in enumerate((ONE, TWO), 1):
            world.source.publish(revision)
            await world.attempted(count)
        attempt = await (await world.operator.rollback(1))
    assert attempt.generation == 4
    assert world.replica.live.revision.id == "first"


@pytest.mark.parametrize(("number", "words"), [(7, "known are 1"), (1, "live already")])
async def test_a_rollback_to_nowhere_says_what_is_known(
    world: World, number: int, words: str
) -> None:
    async with world.running():
        with pytest.raises(BadRequest, match=words):
            await world.operator.rollback(number)


async def test_a_rollback_to_what_is_gone_says_where_it_lay_and_what_can_be_had(
    world: World,
) -> None:
    async with world.running():
        for count, revision in enumerate((ONE, TWO, THREE), 1):
            world.source.publish(revision)
            await world.attempted(count)
        del world.source.known[ONE.label], world.source.known["step_0"]
        with pytest.raises(NothingOfThatName) as refused:
            await world.operator.rollback(2)
    words = str(refused.value)
    assert words.startswith("generation 2 (step_1) is no longer kept in memory, and its files are ")
    assert f"gone from {world.source.folder / 'step_1'}: " in words
    offered = "generation 3 (step_2, kept in memory): hotreload rollback 3"
    assert words.endswith(f"; what can be had: {offered}")


async def test_a_rollback_whose_drain_does_not_end_keeps_the_previous_one(world: World) -> None:
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        async with world.gate.admit():
            attempt = await (await world.operator.rollback())
        assert attempt.outcome is Outcome.POSTPONED
        assert world.replica.previous is not None
        attempt = await (await world.operator.rollback())
    assert attempt.outcome is Outcome.LIVE


async def test_a_pin_survives_a_restart_and_holds_until_unpinned(world: World) -> None:
    async with world.running():
        await world.operator.pin()
        world.source.publish(ONE)
        await world.until(lambda: "pin" in str(world.waiting_for))
        with pytest.raises(Busy, match="unpin"):
            await world.operator.reload(None)
        assert world.restarted_ledger().pinned
        await world.operator.unpin()
        assert (await world.attempted()).outcome is Outcome.LIVE


async def test_an_operator_hears_of_a_lost_engine(world: World) -> None:
    world.source.known[ONE.label] = ONE
    world.steps.faults["exchange"] = lost()
    task = asyncio.create_task(world.reconciler.run())
    promise = await world.operator.reload(ONE.label)
    with pytest.raises(EngineLost):
        await promise
    with pytest.RaisesGroup(EngineLost):
        await task


async def test_an_attempt_under_way_is_on_disk_before_anything_is_touched(world: World) -> None:
    world.steps.faults["fetch"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["fetch"].wait()
        assert world.restarted_ledger().under_way == ONE


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_wall_clock_that_jumps_neither_hurries_nor_delays_a_second_try(
    world: World, jump: float
) -> None:
    world.steps.faults["fetch"] = [SourceUnavailable("the folder is away")]
    async with world.running():
        world.source.publish(ONE)
        assert (await world.attempted()).outcome is Outcome.POSTPONED
        await world.until(lambda: "again in 1 s" in str(world.waiting_for))
        world.wall += jump
        world.source.publish(ONE)  # wakes it; by its own clock no time has passed
        await world.rests()
        assert len(world.attempts) == 1
        world.now = 1.0
        world.source.publish(ONE)
        assert (await world.attempted(2)).outcome is Outcome.LIVE
    assert world.replica.live.since == pytest.approx(1001.0 + jump)


async def test_a_source_that_says_when_is_not_asked_before(world: World) -> None:
    world.steps.faults["fetch"] = [SourceUnavailable("the hub says so", retry_after=300.0)]
    async with world.running():
        world.source.publish(ONE)
        assert (await world.attempted()).outcome is Outcome.POSTPONED
        await world.until(lambda: "again in 300 s" in str(world.waiting_for))
        world.now = 300.0
        world.source.publish(ONE)
        assert (await world.attempted(2)).outcome is Outcome.LIVE


async def test_an_older_revision_wished_again_goes_live_again(world: World) -> None:
    async with world.running():
        for count, revision in enumerate((ONE, TWO, ONE), start=1):
            world.source.publish(revision)
            assert (await world.attempted(count)).revision == revision
    assert world.replica.live.revision == ONE
    assert world.replica.live.number == 4


@pytest.mark.parametrize("step", ["fetch", "validate", "stage"])
async def test_a_newer_wish_cuts_short_what_takes_long(world: World, step: str) -> None:
    world.steps.faults[step] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered[step].wait()
        world.steps.faults.clear()
        world.source.publish(TWO)
        first = await world.attempted()
        assert (first.revision, first.outcome) == (ONE, Outcome.SUPERSEDED)
        assert (await world.attempted(2)).outcome is Outcome.LIVE
    assert world.replica.live.revision == TWO


async def test_a_rollback_does_not_wait_for_a_download(world: World) -> None:
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.faults["fetch"] = HANG
        world.source.publish(TWO)
        await world.until(lambda: world.status_phase is Phase.FETCHING)
        attempt = await (await world.operator.rollback())
    assert attempt.outcome is Outcome.LIVE
    assert world.replica.live.revision.id == "first"


async def test_the_same_wish_again_does_not_begin_a_download_anew(world: World) -> None:
    world.steps.faults["fetch"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["fetch"].wait()
        world.source.publish(ONE)
        await world.until(lambda: sum(isinstance(e, RevisionWanted) for e in world.happened) == 2)
        world.steps.released["fetch"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE


async def test_a_rollback_does_not_wait_for_a_download_that_no_wish_may_cut_short(
    world: World,
) -> None:
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.faults["fetch"] = HANG
        world.source.publish(TWO)
        await world.until(lambda: PhaseEntered(TWO, Phase.FETCHING) in world.happened)
        world.source.publish(THREE)
        await world.until(lambda: PhaseEntered(THREE, Phase.FETCHING) in world.happened)
        attempt = await (await world.operator.rollback())
    outcomes = [each.outcome for each in world.attempts]
    assert outcomes == [Outcome.LIVE, Outcome.SUPERSEDED, Outcome.SUPERSEDED, Outcome.LIVE]
    assert attempt.revision.id == world.replica.live.revision.id == "first"


async def test_a_rollback_overrules_a_reload_that_takes_long(world: World) -> None:
    world.source.known[TWO.label] = TWO
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.entered["fetch"].clear()
        world.steps.faults["fetch"] = HANG
        reload = await world.operator.reload(TWO.label)
        await world.steps.entered["fetch"].wait()
        rollback = await world.operator.rollback()
        with pytest.raises(Busy):  # asked twice in a hurry, it must not go back twice
            await world.operator.rollback()
        assert (await reload).outcome is Outcome.SUPERSEDED
        assert (await rollback).outcome is Outcome.LIVE
    assert world.replica.live.revision.id == "first"


async def test_a_reload_that_has_begun_to_swap_is_not_overruled(world: World) -> None:
    world.source.known[TWO.label] = TWO
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        world.steps.faults["exchange"] = HANG
        reload = await world.operator.reload(TWO.label)
        await world.until(lambda: world.status_phase is Phase.SWAPPING)
        with pytest.raises(Busy):
            await world.operator.rollback()
        world.steps.released["exchange"].set()
        assert (await reload).outcome is Outcome.LIVE


async def test_what_the_source_wished_before_noise_goes_live_after_it(world: World) -> None:
    world.steps.faults["fetch"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["fetch"].wait()
        world.steps.faults.clear()
        noisy = await (await world.operator.perturb(Noise(num_leaves=1)))
        assert noisy.outcome is Outcome.LIVE
        await world.until(lambda: world.replica.live.revision == ONE)


async def test_a_stop_before_an_attempt_has_begun_leaves_nothing_behind(world: World) -> None:
    """The state file was being written: the attempt's steps had been made, and never ran."""
    saving = asyncio.Event()

    async def save(ledger: Ledger) -> str | None:
        saving.set()
        await asyncio.Event().wait()
        return None

    world.reconciler.attempts.write = save
    world.wish(ONE)
    turn = asyncio.create_task(world.reconciler.turn())
    await saving.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


async def test_what_is_missed_is_said_to_be_wanted_and_tried_only_when_it_is_back(
    world: World,
) -> None:
    """`wanted` said what is live, while an older generation answered in another's place."""
    older = world.replica.live.revision
    world.ledger.missed = PastGeneration(7, TWO, "fp", "/gone", 0.0)
    async with world.running():
        world.source.publish(older)  # all that it has left
        await world.source.heard()
        wanted = [each for each in world.happened if isinstance(each, RevisionWanted)]
        assert wanted == [RevisionWanted(TWO)] * 2
        assert world.attempts == []
        world.source.publish(TWO)
        await world.attempted()
    assert world.replica.live.revision == TWO
    assert world.ledger.missed is None
