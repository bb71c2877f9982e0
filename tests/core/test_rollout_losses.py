"""Engines that are lost, or take long, while a reload goes from one to the other."""

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import EngineLost, ProbeFailed, TryAgain
from hotreload.events import GenerationLive
from hotreload.types import GateState, Mode, Outcome
from tests.core.conftest import World
from tests.core.test_rollout import GOOD, answers
from tests.fakes import HANG, FakeEngine
from tests.waiting import turn_until


def code(world: World) -> str | None:
    """Why the last attempt did not go live."""
    reason = world.attempts[-1].reason
    return reason.code if reason else None


def holds(world: World, index: int) -> bool:
    return world.entrance.gates[index].state is GateState.HOLDING


class Breaks:
    """A step of an engine that breaks when it is told to go on."""

    def __init__(self, engine: FakeEngine, step: str, fault: Exception) -> None:
        self.entered = asyncio.Event()
        self.goes_on = asyncio.Event()
        self._fault = fault
        setattr(engine, step, self._broken)

    async def _broken(self, staged: object) -> None:
        self.entered.set()
        await self.goes_on.wait()
        raise self._fault


class Inside:
    """A request that one engine answers until it is told to leave."""

    def __init__(self, world: World, index: int) -> None:
        self._gate = world.entrance.gates[index]
        self.leave = asyncio.Event()
        self._task = asyncio.create_task(self._stay())

    async def _stay(self) -> None:
        async with self._gate.admit():
            await self.leave.wait()

    async def left(self) -> None:
        self.leave.set()
        await self._task


# --- the way back takes as long as it takes ------------------------------------------------


async def test_a_request_that_runs_long_is_waited_for_by_the_way_back(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(drain_timeout=0.05, longest_drain=30.0), engines=2)
    async with world.running():
        slow = Inside(world, 1)
        world.engines[1].steps.faults["twin"] = HANG
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["twin"].wait()
        long = Inside(world, 0)
        await turn_until(lambda: world.entrance.gates[0].inside == 1)
        world.engines[1].steps.released["twin"].set()
        await world.until(lambda: holds(world, 0))
        await asyncio.sleep(0.1)  # longer than a drain that may fail would wait
        assert len(world.replicas) == 2
        await long.left()
        await world.attempted()
        await slow.left()
    assert (code(world), answers(world)) == ("drain", ["1: first clean"] * 2)
    assert world.engine.aborts == 0


async def test_one_that_runs_longer_than_any_may_is_aborted_and_never_costs_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotreload.core.drain.ABORT_GRACE", 0.01)
    world = World(tmp_path, Rules(drain_timeout=0.02, longest_drain=0.04), engines=2)
    async with world.running():
        slow = Inside(world, 1)
        world.engines[1].steps.faults["twin"] = HANG
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["twin"].wait()
        stubborn = Inside(world, 0)
        await turn_until(lambda: world.entrance.gates[0].inside == 1)
        world.engines[1].steps.released["twin"].set()
        await world.until(lambda: world.engine.aborts == 3)
        await stubborn.left()
        await world.attempted()
        await slow.left()
    assert (code(world), answers(world)) == ("drain", ["1: first clean"] * 2)


async def test_the_way_back_asks_no_probe(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(), engines=2)
    world.engines[1].steps.faults |= {"twin": HANG, "probe": ProbeFailed("no")}
    async with world.running():
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["twin"].wait()
        world.engine.steps.faults["probe"] = ProbeFailed("no to whatever answers")
        world.engines[1].steps.released["twin"].set()
        await world.attempted()
    assert (code(world), answers(world)) == ("probe", ["1: first clean"] * 2)


# --- an engine that is lost, and the weights that may have done it ------------------------------


async def test_a_dry_run_that_its_engine_dies_of_is_put_off_while_others_serve(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=2)
    world.source.known[GOOD.label] = GOOD
    world.engine.steps.faults["prove"] = EngineLost("it died")
    async with world.running():
        attempt = await (await world.operator.rehearse(GOOD.label))
        assert attempt.outcome is Outcome.POSTPONED
        assert attempt.reason is not None
        assert attempt.reason.code == "replica_lost"
        assert await world.ask() == "1: first clean"
    assert world.each[0].gate.is_lost
    assert GOOD.id not in world.ledger.refused


@pytest.mark.parametrize("step", ["twin", "prove"])
async def test_weights_that_kill_an_engine_once_they_are_live_reach_no_other(
    tmp_path: Path, step: str
) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    world.engines[1].steps.faults[step] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.engines[1].steps.entered[step].wait()
        world.each[0].lose(EngineLost("it died of a client's prompt"))
        world.engines[1].steps.released[step].set()
        assert (await world.attempted()).outcome is Outcome.POSTPONED
        assert code(world) == "replica_lost"
        assert answers(world) == ["1: first clean"] * 2
        assert await world.ask() == "1: first clean"
    assert "stage" not in world.engines[1].steps.entered
    assert "twin" not in world.engines[2].steps.entered


async def test_between_two_engines_too(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=2)

    def die(event: object) -> None:
        if isinstance(event, GenerationLive) and event.replica == 0:
            world.each[0].lose(EngineLost("it died at once"))

    world.subscribe(die)
    async with world.running():
        world.source.publish(GOOD)
        await world.attempted()
    assert (code(world), answers(world)) == ("replica_lost", ["1: first clean"])
    assert "stage" not in world.engines[1].steps.entered


async def test_a_copy_that_breaks_because_its_original_is_gone_is_such_a_loss_too(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=2)
    copy = Breaks(world.engines[1], "twin", TryAgain("it has no leaves", code="original_gone"))
    async with world.running():
        world.source.publish(GOOD)
        await copy.entered.wait()
        world.each[0].lose(EngineLost("it died"))
        copy.goes_on.set()
        await world.attempted()
    assert (code(world), answers(world)) == ("replica_lost", ["1: first clean"])


@pytest.mark.parametrize("rollout", ["rolling", "together"])
@pytest.mark.parametrize("at", [0, 1])
async def test_whatever_breaks_in_an_engine_that_is_lost_refuses_no_checkpoint(
    tmp_path: Path, at: int, rollout: Literal["rolling", "together"]
) -> None:
    world = World(tmp_path, Rules(sets=3, rollout=rollout), mode=Mode.OVERLAP, engines=2)
    proof = Breaks(world.engines[at], "prove", ProbeFailed("a closed engine answers nothing"))
    async with world.running():
        world.source.publish(GOOD)
        await proof.entered.wait()
        world.each[at].lose(EngineLost("its watch found it hung"))
        proof.goes_on.set()
        attempt = await world.attempted()
    assert attempt.outcome is (Outcome.POSTPONED if at == 0 else Outcome.LIVE)
    assert GOOD.id not in world.ledger.refused


async def test_whatever_breaks_in_the_last_one_that_is_lost_ends_the_daemon(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(), mode=Mode.OVERLAP)
    proof = Breaks(world.engine, "prove", ProbeFailed("a closed engine answers nothing"))
    world.source.publish(GOOD)
    running = asyncio.create_task(world.reconciler.run())
    await proof.entered.wait()
    world.each[0].lose(EngineLost("its watch found it hung"))
    proof.goes_on.set()
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert ended.group_contains(EngineLost)
    assert GOOD.id not in world.ledger.refused


async def test_a_stop_after_one_engine_died_of_it_refuses_no_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    proof = Breaks(world.engines[1], "prove", ProbeFailed("a closed engine answers nothing"))
    world.engines[2].steps.faults["twin"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await proof.entered.wait()
        world.each[1].lose(EngineLost("its watch found it hung"))
        proof.goes_on.set()
        await world.engines[2].steps.entered["twin"].wait()
    assert world.attempts == []
    assert world.restarted_ledger().refused == {}


# --- together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("kept", [KeepPrevious.DEVICE, KeepPrevious.NONE])
@pytest.mark.parametrize("at", [1, 2])
async def test_together_one_that_is_lost_as_it_goes_live_undoes_no_other(
    tmp_path: Path, mode: Mode, at: int, kept: KeepPrevious
) -> None:
    rules = Rules(rollout="together", sets=3, keep_previous=kept)
    world = World(tmp_path, rules, mode=mode, engines=3)
    dying = world.engines[at]
    swap = Breaks(dying, "flip" if mode is Mode.OVERLAP else "exchange", EngineLost("it died"))
    for step in ("release", "stow"):
        dying.steps.faults[step] = EngineLost("it died")
    async with world.running():
        world.source.publish(GOOD)
        await swap.entered.wait()
        others = [each for each in world.each if each.engine is not dying]
        await world.until(lambda: all(each.live.number == 2 for each in others))
        swap.goes_on.set()
        attempt = await world.attempted()
        assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
        assert answers(world) == ["2: good clean"] * 2
    assert world.replicas.live.number == 2


async def test_together_one_that_is_lost_at_the_very_end_undoes_no_other(tmp_path: Path) -> None:
    rules = Rules(rollout="together", keep_previous=KeepPrevious.NONE)
    world = World(tmp_path, rules, mode=Mode.DRAIN, engines=2)
    world.engines[1].steps.faults["release"] = EngineLost("it died")
    async with world.running():
        world.source.publish(GOOD)
        assert (await world.attempted()).outcome is Outcome.LIVE
        assert answers(world) == ["2: good clean"]
        assert await world.ask() == "2: good clean"


async def test_together_what_fails_when_all_that_serve_are_live_undoes_nothing(
    tmp_path: Path,
) -> None:
    rules = Rules(rollout="together", keep_previous=KeepPrevious.NONE)
    world = World(tmp_path, rules, mode=Mode.DRAIN, engines=2)
    swap = Breaks(world.engines[1], "exchange", EngineLost("it died"))
    world.engine.steps.faults["release"] = [RuntimeError("a fault of ours")]
    async with world.running():
        world.source.publish(GOOD)
        await swap.entered.wait()
        await world.until(lambda: world.each[0].live.number == 2)
        swap.goes_on.set()
        assert (await world.attempted()).outcome is Outcome.LIVE
        assert answers(world) == ["2: good clean"]


@pytest.mark.parametrize("step", ["twin", "prove"])
async def test_together_one_that_dies_after_the_first_is_ready_is_left_out(
    tmp_path: Path, step: str
) -> None:
    world = World(tmp_path, Rules(rollout="together", sets=3), mode=Mode.OVERLAP, engines=3)
    world.engines[1].steps.faults[step] = EngineLost("it died")
    async with world.running():
        world.source.publish(GOOD)
        assert (await world.attempted()).outcome is Outcome.LIVE
    assert answers(world) == ["2: good clean"] * 2


async def test_together_the_first_that_dies_while_another_copies_it_puts_it_off(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(rollout="together", sets=3), mode=Mode.OVERLAP, engines=3)
    copy = Breaks(world.engines[1], "twin", TryAgain("it has no leaves", code="original_gone"))
    async with world.running():
        world.source.publish(GOOD)
        await copy.entered.wait()
        world.each[0].lose(EngineLost("it died"))
        copy.goes_on.set()
        await world.attempted()
    assert (code(world), answers(world)) == ("replica_lost", ["1: first clean"] * 2)
    assert "stage" not in world.engines[2].steps.entered
