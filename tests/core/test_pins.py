"""After a pin nothing changes: neither what the source wished before, nor at the next start."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from hotreload.core.way_in.gate import Gate
from hotreload.errors import NotSaved
from hotreload.events import OperatorAsked
from hotreload.types import Generation, Noise, Outcome, Phase, Revision
from tests.core.conftest import World, by
from tests.fakes import HANG, FakeEngine
from tests.waiting import PATIENCE

ONE, TWO = (Revision(f"r{n}", f"step_{n}") for n in (1, 2))


def drains(world: World, revision: Revision) -> None:
    """A drain that lasts until whoever is inside leaves."""
    world.reconciler.rules = world.reconciler.rules.__class__(drain_timeout=60.0)
    world.source.publish(revision)


async def pinned(world: World) -> Generation:
    async with asyncio.timeout(PATIENCE):
        generation: Generation = await world.operator.pin()
        return generation


async def test_a_pin_during_a_drain_ends_it_and_nothing_changes_after_its_answer(
    world: World,
) -> None:
    async with world.running(), world.gate.admit():
        drains(world, ONE)
        await world.until(lambda: world.status_phase is Phase.DRAINING)
        generation = await pinned(world)
        assert generation == world.replica.live
        assert generation.number == 1
        assert [each.outcome for each in world.attempts] == [Outcome.SUPERSEDED]
        assert world.engine.sets_held == 1
    assert world.replica.live == generation


@pytest.mark.parametrize("turns", range(8))
async def test_a_pin_as_the_last_request_leaves_is_before_the_exchange_or_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """It comes so many turns of the loop after the end of the drain."""
    pins = list[asyncio.Task[Generation]]()
    drained = Gate.wait_until_empty

    async def drained_and_pinned(gate: Gate[FakeEngine], within: float) -> None:
        await drained(gate, within)
        pins.append(asyncio.create_task(pin_after(world, turns)))

    monkeypatch.setattr(Gate, "wait_until_empty", drained_and_pinned)
    async with world.running():
        world.source.publish(ONE)
        outcome = (await world.attempted()).outcome
        assert await pins[0] == world.replica.live
        assert turns > 0 or outcome is Outcome.SUPERSEDED


async def pin_after(world: World, turns: int) -> Generation:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await pinned(world)


async def test_a_pin_during_the_exchange_answers_when_it_is_settled_what_is_pinned(
    world: World,
) -> None:
    world.steps.faults["exchange"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["exchange"].wait()
        pin = asyncio.create_task(pinned(world))
        await asyncio.sleep(0.01)
        assert not pin.done()
        world.steps.released["exchange"].set()
        assert (await pin).number == 2
        world.source.publish(TWO)
        await world.until(lambda: "pin" in str(world.waiting_for))
    assert world.replica.live.revision == ONE


async def test_a_pin_waits_for_what_an_operator_asked_for_before(world: World) -> None:
    world.source.known[ONE.label] = ONE
    world.steps.faults["fetch"] = HANG
    async with world.running():
        reload = await world.operator.reload(ONE.label)
        await world.steps.entered["fetch"].wait()
        pin = asyncio.create_task(pinned(world))
        await asyncio.sleep(0.01)
        assert not pin.done()
        world.steps.released["fetch"].set()
        assert (await reload).generation == 2
        assert (await pin).number == 2


async def test_a_rollback_does_not_wait_for_a_drain(world: World) -> None:
    async with world.running():
        world.source.publish(ONE)
        await world.attempted()
        async with world.gate.admit():
            drains(world, TWO)
            await world.until(
                lambda: world.status_phase is Phase.DRAINING and len(world.attempts) == 1
            )
            rollback = await world.operator.rollback()
            assert (await world.attempted(2)).outcome is Outcome.SUPERSEDED
        assert (await rollback).revision.id == "first"


async def test_a_newer_wish_does_not_end_a_drain(world: World) -> None:
    async with world.running():
        async with world.gate.admit():
            drains(world, ONE)
            await world.until(lambda: world.status_phase is Phase.DRAINING)
            world.source.publish(TWO)
            await world.until(lambda: world.ledger.wanted == TWO)
        assert (await world.attempted()).outcome is Outcome.LIVE
        assert (await world.attempted(2)).revision == TWO


@pytest.mark.parametrize("verb", ["pin", "unpin"])
async def test_what_a_restart_would_forget_is_refused_and_not_done(world: World, verb: str) -> None:
    async with world.running():
        if verb == "unpin":
            await world.operator.pin()
        before = (world.ledger.pinned, world.ledger.pinned_by)
        world.disk_fault = "state.json cannot be written: read-only"
        with pytest.raises(NotSaved, match=f"not {verb}ned: a restart would forget it.*read-only"):
            await getattr(world.operator, verb)()
        assert (world.ledger.pinned, world.ledger.pinned_by) == before
        told = [each for each in world.happened if isinstance(each, OperatorAsked)]
        assert (told[-1].by, "read-only" in str(told[-1].refusal)) == (by(verb), True)


async def test_a_pin_that_was_refused_leaves_the_source_followed(world: World) -> None:
    world.disk_fault = "read-only"
    async with world.running():
        with pytest.raises(NotSaved):
            await world.operator.pin()
        world.source.publish(ONE)
        assert (await world.attempted()).outcome is Outcome.LIVE


async def test_who_pinned_is_known_after_a_restart_too(world: World) -> None:
    async with world.running():
        await world.operator.pin()
    ledger = world.restarted_ledger()
    assert (ledger.pinned, ledger.pinned_by) == (True, by("pin"))
    async with world.running():
        await world.operator.unpin()
    ledger = world.restarted_ledger()
    assert (ledger.pinned, ledger.pinned_by) == (False, None)
    assert list(ledger.pins) == [by("unpin"), by("pin")]


async def test_noise_is_not_pinned_for_a_restart_knows_none(world: World) -> None:
    async with world.running():
        await (await world.operator.perturb(Noise(num_leaves=1)))
        with pytest.raises(NotSaved, match="noise answers, and a restart would forget it"):
            await world.operator.pin()
        assert not world.ledger.pinned
        await (await world.operator.rollback())
        assert (await pinned(world)).revision.is_noise is False


async def rolled_back(world: World, number: int | None = None, *, holds: bool = True) -> None:
    assert (await (await world.operator.rollback(number, holds=holds))).outcome is Outcome.LIVE


async def live(world: World, *revisions: Revision) -> None:
    for revision in revisions:
        world.source.publish(revision)
        await world.until(partial(was_tried, world, revision))


def was_tried(world: World, revision: Revision) -> bool:
    return revision in [each.revision for each in world.attempts]


@pytest.mark.parametrize("later", [False, True])
async def test_after_unpin_the_newest_that_was_not_tried_goes_live(
    world: World, later: bool
) -> None:
    """Whether it came before the rollback, which overrules it, or later."""
    async with world.running():
        await live(world, ONE)
        world.reconciler.rules = replace(world.reconciler.rules, min_interval=60.0)
        world.ledger.rest_until = world.now + 60.0  # a newer one is not tried at once
        if not later:
            world.source.publish(TWO)
            await world.until(lambda: world.ledger.wanted == TWO)
        await rolled_back(world)
        if later:
            world.source.publish(TWO)
            await world.until(lambda: world.ledger.wanted == TWO)
        world.now += 120.0
        await world.rests()
        assert (world.ledger.pinned_by, world.replica.live.revision.id) == (by("rollback"), "first")
        assert world.restarted_ledger().pinned_by == by("rollback")
        world.disk_fault = "read-only"
        with pytest.raises(NotSaved):
            await world.operator.unpin()
        await world.rests()
        assert (world.ledger.pinned, world.replica.live.revision.id) == (True, "first")
        world.disk_fault = None
        await world.operator.unpin()
        await world.until(lambda: world.replica.live.revision == TWO)


async def test_after_unpin_what_was_left_is_not_tried_again(world: World) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await rolled_back(world)
        await world.operator.unpin()
        await world.rests()
        assert world.replica.live.revision == ONE


async def test_a_rollback_that_follows_or_takes_noise_off_holds_nothing(world: World) -> None:
    async with world.running():
        await live(world, ONE)
        await (await world.operator.perturb(Noise(num_leaves=1)))
        await rolled_back(world)
        assert (world.ledger.pinned, world.replica.live.revision) == (False, ONE)
        await rolled_back(world, holds=False)
        assert not world.ledger.pinned


async def test_noise_that_is_gone_back_to_is_not_held(world: World) -> None:
    async with world.running():
        await (await world.operator.perturb(Noise(num_leaves=1)))
        await live(world, ONE)
        await rolled_back(world, 2)
        assert world.replica.live.revision.is_noise
        assert not world.ledger.pinned
