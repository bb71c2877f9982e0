"""An engine over several ranks: a step is done on all or on none; who is against it is named."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hotreload.errors import (
    CheckpointIncompatible,
    CheckpointRejected,
    EngineLost,
    NotEnoughMemory,
    ProbeFailed,
    TryAgain,
)
from hotreload.types import Checkpoint, Noise, Revision, Staged
from tests.fakes import HANG, FakeEngine, unread
from tests.hosts.slice import NEW, running
from tests.waiting import turn_until


async def test_new_weights_go_live_on_all_and_old_ones_end_on_all() -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        assert ranks.prepared == [NEW, NEW]
        await ranks.over.unseen.prove(staged)
        assert [len(engine.proofs) for engine in ranks.engines] == [1, 1, 1]
        before = await ranks.over.switch.flip(staged)
        assert ranks.live == ["new"] * 3
        await ranks.over.switch.retire(before)
        await ranks.over.weights.release(before)
        assert ranks.sets == [1, 1, 1]


async def test_weights_are_exchanged_and_put_back_on_all() -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        before = await ranks.over.switch.exchange(staged)
        assert ranks.live == ["new"] * 3
        await ranks.over.switch.scrub()
        await ranks.over.weights.release(await ranks.over.switch.exchange(before))
        assert (ranks.live, ranks.sets) == (["old"] * 3, [1, 1, 1])
        assert [engine.scrubs for engine in ranks.engines] == [1, 1, 1]


BREAKS: dict[Callable[[str], Exception], type[Exception]] = {
    CheckpointIncompatible: CheckpointRejected,
    NotEnoughMemory: TryAgain,
    EngineLost: EngineLost,
    RuntimeError: CheckpointRejected,
}


@pytest.mark.parametrize("breaks", BREAKS)
async def test_nobody_keeps_what_one_rank_could_not_stage(breaks: Callable[[str], Any]) -> None:
    async with running() as ranks:
        ranks.third.steps.faults["stage"] = [breaks("not this one")]
        with pytest.raises(BREAKS[breaks], match=r"rank 2: .*not this one"):
            await ranks.over.weights.stage(unread(NEW))
        assert (ranks.live, ranks.sets) == (["old"] * 3, [1, 1, 1])
        await ranks.over.switch.flip(await ranks.over.weights.stage(unread(NEW)))
        assert ranks.live == ["new"] * 3


async def test_what_rank_0_cannot_stage_no_other_keeps() -> None:
    async with running() as ranks:
        ranks.own.steps.faults["stage"] = [CheckpointIncompatible("not mine")]
        with pytest.raises(CheckpointIncompatible, match="not mine"):
            await ranks.over.weights.stage(unread(NEW))
        assert ranks.sets == [1, 1, 1]


async def test_a_rank_that_is_slow_to_stage_is_named_and_gives_up() -> None:
    async with running() as ranks:
        ranks.patient(stage=0.1)
        ranks.second.steps.faults["stage"] = HANG
        with pytest.raises(TryAgain, match="rank 1 did not stage in time"):
            await ranks.over.weights.stage(unread(NEW))
        ranks.second.steps.released["stage"].set()
        assert (ranks.live, ranks.sets) == (["old"] * 3, [1, 1, 1])


async def test_ranks_that_load_different_weights_keep_none() -> None:
    async with running() as ranks:
        stage = ranks.third.weights.stage

        async def other(checkpoint: Checkpoint) -> Staged:
            staged = await stage(checkpoint)
            return replace(staged, fingerprint="another")

        ranks.third.weights.stage = other  # type: ignore[method-assign]
        ranks.third.weights.release = only_frees(ranks.third)  # type: ignore[method-assign]
        with pytest.raises(TryAgain, match="rank 2 has another fingerprint"):
            await ranks.over.weights.stage(unread(NEW))
        assert ranks.sets == [1, 1, 1]


def only_frees(engine: FakeEngine) -> Any:
    async def release(staged: Staged) -> None:
        engine.spares = [each for each in engine.spares if each.weights is not staged.weights]

    return release


async def test_a_probe_that_fails_leaves_all_as_they_were() -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(replace(NEW, label="bad")))
        with pytest.raises(ProbeFailed):
            await ranks.over.unseen.prove(staged)
        await ranks.over.weights.release(staged)
        assert (ranks.live, ranks.sets) == (["old"] * 3, [1, 1, 1])


@pytest.mark.parametrize("change", ["flip", "exchange"])
async def test_a_change_that_rank_0_cannot_begin_is_made_nowhere(change: str) -> None:
    """Each rank waits for rank 0 with it, and is told that it will not come."""
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        for engine in (ranks.second, ranks.third):
            engine.steps.faults[change] = HANG
        ranks.own.steps.faults[change] = [TryAgain("not idle")]
        with pytest.raises(TryAgain, match="not idle"):
            await getattr(ranks.over.switch, change)(staged)
        assert ranks.live == ["old"] * 3
        assert [engine.withdrawn for engine in ranks.engines] == [[2], [], []]
        for engine in (ranks.second, ranks.third):
            del engine.steps.faults[change]
        await getattr(ranks.over.switch, change)(staged)
        assert ranks.live == ["new"] * 3


@pytest.mark.parametrize("change", ["flip", "exchange"])
async def test_a_change_that_is_made_here_and_not_elsewhere_loses_the_engine(change: str) -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        ranks.third.steps.faults[change] = HANG
        ranks.patient(other=0.2)
        with pytest.raises(EngineLost, match=f"rank 0 did {change}, but rank 2 did not"):
            await getattr(ranks.over.switch, change)(staged)


@pytest.mark.parametrize(("part", "change"), [("unseen", "prove"), ("switch", "flip")])
async def test_when_the_part_here_is_lost_nobody_waits_for_the_others(
    part: str, change: str
) -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        ranks.third.steps.faults[change] = HANG
        doing = getattr(getattr(ranks.over, part), change)
        changing = asyncio.create_task(doing(staged))
        await ranks.third.steps.entered[change].wait()
        ranks.own.die()
        with pytest.raises(EngineLost, match="the scheduler thread died"):
            await changing


async def test_others_take_steps_while_old_weights_still_answer() -> None:
    async with running() as ranks:
        before = await ranks.over.switch.flip(await ranks.over.weights.stage(unread(NEW)))
        for engine in ranks.engines:
            engine.steps.faults["retire"] = HANG
        retiring = asyncio.create_task(ranks.over.switch.retire(before))
        await ranks.own.steps.entered["retire"].wait()
        later = await ranks.over.weights.stage(unread(Revision("later", "step_3")))
        await ranks.over.weights.release(later)
        assert not retiring.done()
        for engine in ranks.engines:
            engine.steps.released["retire"].set()
        await retiring
        await ranks.over.weights.release(before)
        await turn_until(lambda: ranks.sets == [1, 1, 1])


async def test_a_stage_that_is_cancelled_leaves_nothing_anywhere() -> None:
    async with running() as ranks:
        ranks.own.steps.faults["stage"] = HANG
        staging = asyncio.create_task(ranks.over.weights.stage(unread(NEW)))
        await turn_until(lambda: ranks.sets[1:] == [2, 2])
        staging.cancel()
        await asyncio.wait({staging})
        assert staging.cancelled()
        assert ranks.sets == [1, 1, 1]


async def test_a_rank_whose_weights_have_drifted_is_heard_when_all_are_measured() -> None:
    async with running() as ranks:
        assert await ranks.over.weights.checksums() == ranks.own.live.leaves
        ranks.third.steps.faults["checksums"] = [EngineLost("nothing to measure")]
        with pytest.raises(EngineLost, match="rank 2: nothing to measure"):
            await ranks.over.weights.checksums()


async def test_others_are_told_what_rank_0_has_done_and_may_be_against_it() -> None:
    async with running() as ranks:
        await ranks.over.send_live({"number": "7"})
        assert [each.told for each in ranks.following] == [[{"number": "7"}]] * 2
        ranks.following[1].record = against  # type: ignore[method-assign]
        with pytest.raises(TryAgain, match="rank 2: not written"):
            await ranks.over.send_live({"number": "8"})


async def against(about: Any) -> None:
    raise TryAgain("not written")


async def test_what_no_rank_knows_as_a_step_is_an_error_of_ours() -> None:
    async with running() as ranks:
        step = await ranks.chair.call("dance")
        with pytest.raises(CheckpointRejected, match=r"rank \d: internal error: KeyError: 'dance'"):
            await ranks.chair.collect_votes(step, 30)


async def test_what_an_engine_over_several_hosts_cannot_is_refused_in_words() -> None:
    async with running() as ranks:
        live, noise = ranks.over.weights.live, Noise(7, 0.1, 1)
        refused = [
            ranks.over.weights.perturb(NEW, noise),
            ranks.over.weights.twin(live),
            ranks.over.weights.stow(live),
        ]
        for asked in refused:
            with pytest.raises(CheckpointIncompatible, match=r"over several hosts .* cannot"):
                await asked
        assert await ranks.over.weights.unstow(live) is live
