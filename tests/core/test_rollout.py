"""A reload of several engines: one after the other or together, and back on all if one says no."""

from pathlib import Path
from typing import Literal

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import EngineLost, NotEnoughMemory, ProbeFailed
from hotreload.events import GenerationLive, PhaseEntered
from hotreload.types import Mode, Noise, Outcome, Revision
from tests.core.conftest import World
from tests.fakes import HANG

GOOD = Revision("good", "step_1")
BETTER = Revision("better", "step_2")
ROTTEN = Revision("rotten", "step_3_bad")
ROLLOUTS: tuple[Literal["rolling", "together"], ...] = ("rolling", "together")
WAYS = [(mode, rollout) for mode in Mode for rollout in ROLLOUTS]


@pytest.fixture(params=WAYS, ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    mode, rollout = request.param
    rules = Rules(drain_timeout=0.1, probe_timeout=0.25, prove_within=0.05, rollout=rollout, sets=3)
    world = World(tmp_path, rules, mode=mode, engines=3)
    world.source.known |= {each.label: each for each in (GOOD, BETTER, ROTTEN)}
    return world


def answers(world: World) -> list[str]:
    """What each engine that serves says, and as which generation."""
    return [
        f"{each.live.number}: {each.engine.answer(each.engine.live)}" for each in world.replicas
    ]


def goings_live(world: World) -> list[tuple[int, int]]:
    """In which order which engine came to which generation."""
    lives = (event for event in world.happened if isinstance(event, GenerationLive))
    return [(event.replica, event.generation.number) for event in lives]


def proving(world: World) -> str:
    """The step in which an engine says no to weights."""
    return "prove" if world.replica.mode is Mode.OVERLAP else "probe"


async def test_a_checkpoint_is_read_once_and_goes_live_on_all(world: World) -> None:
    async with world.running():
        world.source.publish(GOOD)
        attempt = await world.attempted()
        assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
        assert answers(world) == ["2: good clean"] * 3
        assert goings_live(world) == [(0, 2), (1, 2), (2, 2)]
        assert "twin" not in world.engine.steps.entered
        assert all("stage" not in each.steps.entered for each in world.engines[1:])
    assert world.replicas.live.number == 2
    assert world.ledger.live == world.replicas.live


async def test_one_after_the_other_the_first_goes_live_before_the_next_begins(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(), mode=Mode.OVERLAP, engines=3)
    world.engines[1].steps.faults["twin"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["twin"].wait()
        assert answers(world) == ["2: good clean", "1: first clean", "1: first clean"]
        assert world.ledger.live is not None
        assert (world.ledger.live.number, world.replicas.live.number) == (1, 1)
        world.engines[1].steps.released["twin"].set()
        await world.attempted()
    assert world.ledger.live.number == 2


async def test_together_nobody_goes_live_before_all_are_ready(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(rollout="together"), mode=Mode.OVERLAP, engines=3)
    world.engines[2].steps.faults["prove"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.engines[2].steps.entered["prove"].wait()
        assert goings_live(world) == []
        world.engines[2].steps.released["prove"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE
    assert answers(world) == ["2: good clean"] * 3


async def test_what_the_first_rejects_no_other_engine_ever_holds(world: World) -> None:
    async with world.running():
        world.source.publish(ROTTEN)
        assert (await world.attempted()).outcome is Outcome.REJECTED
    assert answers(world) == ["1: first clean"] * 3
    if not world.reconciler.rules.together or world.replica.mode is Mode.OVERLAP:
        assert all("twin" not in each.steps.entered for each in world.engines)


FAULTS = [
    (ProbeFailed("it talks nonsense here"), Outcome.REJECTED),
    (NotEnoughMemory("another set does not fit here"), Outcome.POSTPONED),
    (RuntimeError("a fault of ours"), Outcome.REJECTED),
]


@pytest.mark.parametrize("kept", [KeepPrevious.DEVICE, KeepPrevious.NONE])
@pytest.mark.parametrize(("fault", "outcome"), FAULTS, ids=lambda each: str(each)[:8])
@pytest.mark.parametrize("at", [1, 2])
async def test_what_one_says_no_to_is_put_back_on_all(
    world: World, at: int, fault: Exception, outcome: Outcome, kept: KeepPrevious
) -> None:
    rollout = world.reconciler.rules.rollout
    world.reconciler.rules = Rules(rollout=rollout, sets=3, keep_previous=kept)
    is_room = isinstance(fault, NotEnoughMemory)
    world.engines[at].steps.faults["twin" if is_room else proving(world)] = fault
    async with world.running():
        world.source.publish(GOOD)
        attempt = await world.attempted()
        assert (attempt.outcome, attempt.generation) == (outcome, None)
        assert answers(world) == ["1: first clean"] * 3
        assert (world.replicas.live.number, len(world.replicas)) == (1, 3)
        trials = {number for _, number in goings_live(world)}
        world.engines[at].steps.faults.clear()
        world.source.publish(BETTER)
        assert (await world.attempted(2)).outcome is Outcome.LIVE
        newest = world.replicas.live.number
        assert answers(world) == [f"{newest}: better clean"] * 3
        # The number of the one that was put back is given to no other weights.
        assert newest == (3 if 2 in trials else 2)
    assert (world.ledger.live or world.replicas.live).number == newest


async def test_the_changed_ones_are_put_back_in_reverse(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=4)
    world.engines[3].steps.faults["prove"] = ProbeFailed("no")
    async with world.running():
        world.source.publish(GOOD)
        attempt = await world.attempted()
        assert attempt.rolled_back
    order = [(0, 2), (1, 2), (2, 2), (2, 1), (1, 1), (0, 1)]
    assert goings_live(world) == order


async def test_one_that_cannot_be_put_back_is_lost_and_the_others_serve(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    world.engines[2].steps.faults["prove"] = ProbeFailed("no")
    flips: list[object] = [RuntimeError("it cannot go back")]
    async with world.running():
        world.engines[1].steps.faults["prove"] = HANG
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["prove"].wait()
        world.engine.steps.faults["flip"] = flips
        world.engines[1].steps.released["prove"].set()
        assert (await world.attempted()).outcome is Outcome.REJECTED
        assert answers(world) == ["1: first clean"] * 2
        assert world.each[0].gate.is_lost
        assert "could not be put back" in str(await world.each[0].wait_until_lost())
        assert await world.ask() == "1: first clean"


async def test_an_engine_that_dies_under_the_first_try_postpones_it_then_refuses_it(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    for engine in world.engines:
        engine.steps.faults["prove"] = [EngineLost("it died")]
    async with world.running():
        world.source.publish(GOOD)
        first = await world.attempted()
        assert (first.outcome, first.reason and first.reason.code) == (
            Outcome.POSTPONED,
            "replica_lost",
        )
        assert answers(world) == ["1: first clean"] * 2
        world.now += 60.0
        world.reconciler.attempts.news.set()
        second = await world.attempted(2)
        assert (second.outcome, second.reason and second.reason.code) == (
            Outcome.REJECTED,
            "crashed",
        )
    assert len(world.replicas) == 1


@pytest.mark.parametrize("step", ["twin", "prove", "flip"])
async def test_the_others_go_on_without_one_that_dies_later(tmp_path: Path, step: str) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    world.engines[1].steps.faults[step] = EngineLost("it died")
    async with world.running():
        world.source.publish(GOOD)
        attempt = await world.attempted()
    assert (attempt.outcome, attempt.generation) == (Outcome.LIVE, 2)
    assert answers(world) == ["2: good clean"] * 2
    assert world.each[1].gate.is_lost


async def test_the_last_engine_that_dies_ends_the_daemon(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=2)
    for engine in world.engines:
        engine.steps.faults["prove"] = EngineLost("it died")
    world.each[1].lose(EngineLost("it died before"))
    world.source.publish(GOOD)
    with pytest.raises(ExceptionGroup) as ended:
        await world.reconciler.run()
    assert ended.group_contains(EngineLost)


async def test_a_rollback_comes_from_memory_on_all(world: World) -> None:
    async with world.running():
        world.source.publish(GOOD)
        await world.attempted()
        attempt = await (await world.operator.rollback())
        assert attempt.outcome is Outcome.LIVE
        assert answers(world) == ["3: first clean"] * 3
    assert all("stage" not in each.steps.entered for each in world.engines[1:])


async def test_each_phase_of_a_rollback_says_which_engine_it_is_on(world: World) -> None:
    async with world.running():
        world.source.publish(GOOD)
        await world.attempted()
        begun = len(world.happened)
        await (await world.operator.rollback())
    told = [e for e in world.happened[begun:] if isinstance(e, PhaseEntered) and e.phase]
    on = {index: [e.phase for e in told if e.replica == index] for index in range(3)}
    assert on[0]
    assert on[0] == on[1] == on[2]


async def test_an_engine_that_does_not_keep_it_copies_it_from_one_that_does(world: World) -> None:
    async with world.running():
        world.source.publish(GOOD)
        await world.attempted()
        await until_nothing_fades(world)
        await world.each[0].forget_previous()
        attempt = await (await world.operator.rollback())
        assert attempt.outcome is Outcome.LIVE
        assert answers(world) == ["3: first clean"] * 3
        assert goings_live(world)[-3:] == [(1, 3), (2, 3), (0, 3)]


async def until_nothing_fades(world: World) -> None:
    for each in world.each:
        for over in tuple(each.fading):
            await each.engine.retire(over.weights)
            await each.put_away(over.weights, KeepPrevious.DEVICE)
            each.end(over)


async def test_noise_is_the_same_on_all(world: World) -> None:
    async with world.running():
        attempt = await (await world.operator.perturb(Noise(num_leaves=1)))
        assert attempt.outcome is Outcome.LIVE
        assert len(set(answers(world))) == 1
        assert "with Noise" in answers(world)[0]


async def test_a_pin_in_the_middle_puts_back_what_had_changed(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(sets=3), mode=Mode.OVERLAP, engines=3)
    world.engines[1].steps.faults["twin"] = HANG
    async with world.running():
        world.source.publish(GOOD)
        await world.engines[1].steps.entered["twin"].wait()
        pinned = await world.operator.pin()
        assert (await world.attempted()).outcome is Outcome.SUPERSEDED
    assert pinned.number == 1
    assert answers(world) == ["1: first clean"] * 3


async def test_a_dry_run_is_tried_on_the_first_alone(world: World) -> None:
    async with world.running():
        attempt = await (await world.operator.rehearse("step_1"))
        assert attempt.outcome is Outcome.PASSED
    assert answers(world) == ["1: first clean"] * 3
    assert all("twin" not in each.steps.entered for each in world.engines)


async def test_while_one_drains_the_others_take_the_requests(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(drain_timeout=30.0), mode=Mode.DRAIN, engines=2)
    async with world.running():
        async with world.entrance.gates[0].admit():
            world.source.publish(GOOD)
            await world.until(lambda: world.replica.gate is not None and is_held(world))
            assert await world.ask() == "1: first clean"
        await world.attempted()
    assert world.entrance.held == 0
    assert answers(world) == ["2: good clean"] * 2


def is_held(world: World) -> bool:
    return world.entrance.gates[0].state == "holding"
