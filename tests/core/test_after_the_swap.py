"""What is true while the weights that were live are put away, and after it went wrong."""

import asyncio
import threading
from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import NotEnoughMemory
from hotreload.events import GateChanged, GenerationLive
from hotreload.threads import in_thread
from hotreload.types import GateState, Mode, Outcome, Revision
from tests.core.conftest import World
from tests.fakes import HANG
from tests.waiting import PATIENCE

NEW = Revision("new", "step_1")
BAD = Revision("rotten", "step_1_bad")


async def test_what_is_live_is_told_and_on_disk_while_the_one_before_is_copied_to_the_host(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(keep_previous=KeepPrevious.HOST))
    world.steps.faults["stow"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.steps.entered["stow"].wait()
        assert await world.ask() == "2: new clean"
        told = [e.generation.number for e in world.happened if isinstance(e, GenerationLive)]
        assert told == [2]
        ledger = world.restarted_ledger()
        assert ledger.last_good is not None
        assert ledger.last_good.revision == NEW
        assert ledger.under_way is None, "a crash in the copy would be blamed on good weights"
        world.steps.released["stow"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE


async def test_a_generation_is_told_of_when_the_gate_is_open_again(world: World) -> None:
    async with world.running():
        world.source.publish(NEW)
        await world.attempted()
    kinds = [e for e in world.happened if isinstance(e, GateChanged | GenerationLive)]
    place = next(n for n, e in enumerate(kinds) if isinstance(e, GenerationLive))
    before = kinds[place - 1]
    assert isinstance(before, GateChanged)
    assert before.state is GateState.OPEN


async def test_a_stop_while_bad_weights_are_freed_does_not_forget_that_they_are_bad(
    world: World,
) -> None:
    world.steps.faults["release"] = HANG
    task = asyncio.create_task(world.reconciler.run())
    world.source.publish(BAD)
    await world.steps.entered["release"].wait()
    task.cancel()
    world.steps.released["release"].set()
    await asyncio.wait({task}, timeout=PATIENCE)
    assert task.cancelled()
    assert world.restarted_ledger().refused[BAD.id].reason.code == "probe"


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_stop_on_the_way_back_waits_for_its_end(tmp_path: Path, mode: Mode) -> None:
    world = World(tmp_path, Rules(), mode=mode)
    change = "flip" if mode is Mode.OVERLAP else "exchange"
    task = asyncio.create_task(world.reconciler.run())
    world.source.publish(NEW)
    await world.attempted()
    world.steps.entered[change].clear()
    world.steps.faults[change] = HANG
    await world.operator.rollback()
    await world.steps.entered[change].wait()
    task.cancel()
    await asyncio.sleep(0)
    world.steps.released[change].set()
    await asyncio.wait({task}, timeout=PATIENCE)
    assert task.cancelled()
    assert [each.outcome for each in world.attempts] == [Outcome.LIVE] * 2
    assert world.engine.live.revision == world.replica.live.revision == Revision("first", "step_0")


async def test_a_fault_of_ours_does_not_bar_the_way_back_to_what_was_live(world: World) -> None:
    async with world.running():
        world.source.publish(NEW)
        await world.attempted()
        world.steps.faults["unstow"] = [RuntimeError("oops")]
        failed = await (await world.operator.rollback())
        assert failed.reason is not None
        assert (failed.outcome, failed.reason.code) == (Outcome.POSTPONED, "internal")
        assert "first" not in world.ledger.refused
        assert world.gate.state is GateState.OPEN
        again = await (await world.operator.rollback(1))
        assert again.outcome is Outcome.LIVE


async def test_a_thread_that_cannot_start_says_which_limit_to_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NotEnoughMemory, match="TasksMax"):
        await in_thread(lambda cancel: None)
