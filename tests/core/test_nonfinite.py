"""Answers that are no numbers: told, cleaned up after, and a reason to go back if so decided."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotreload.core.engines.background import react_to_nonfinite_answers
from hotreload.core.rules import Rules
from hotreload.errors import EngineLost
from hotreload.events import AnswersWithheld
from hotreload.types import GateState, Outcome, Revision
from tests.core.conftest import World
from tests.fakes import HANG, lost

ONE = Revision("r1", "step_1")


@asynccontextmanager
async def heeding(world: World, *, leaves: bool = False) -> AsyncIterator[None]:
    """The core as the daemon runs it, with somebody who heeds what was withheld."""
    task = asyncio.create_task(
        react_to_nonfinite_answers(
            world.replica,
            publish=world.publish,
            drain_timeout=lambda: 0.05,
            leave=world.operator.leave if leaves else None,
        )
    )
    async with world.running():
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


def told(world: World) -> list[tuple[int, int]]:
    events = (each for each in world.happened if isinstance(each, AnswersWithheld))
    return [(each.generation.number, each.answers) for each in events]


async def test_it_is_told_and_what_it_left_is_overwritten_while_nobody_is_inside(
    world: World,
) -> None:
    async with heeding(world):
        async with world.gate.admit():
            world.engine.withhold()
            await world.until(lambda: world.gate.state is GateState.HOLDING)
            held = asyncio.create_task(world.ask())
            world.engine.withhold()
            assert world.engine.scrubs == 0
        assert await held == "1: first clean"
        await world.until(lambda: len(told(world)) == 2)
    assert told(world) == [(1, 1), (1, 1)]
    assert world.engine.scrubs == 1
    assert world.attempts == []


async def test_who_stays_inside_too_long_is_aborted(world: World) -> None:
    leave = asyncio.Event()
    world.engine.on_abort = [leave]

    async def stay() -> None:
        async with world.gate.admit():
            await leave.wait()

    async with heeding(world):
        staying = asyncio.create_task(stay())
        await asyncio.sleep(0)
        world.engine.withhold()
        await staying
        await world.until(lambda: world.gate.state is GateState.OPEN)
    assert (world.engine.aborts, world.engine.scrubs) == (1, 1)


async def test_each_time_is_told_and_seen_to(world: World) -> None:
    async with heeding(world):
        for times in (1, 2, 3):
            world.engine.withhold()
            await world.until(lambda times=times: world.engine.scrubs == times)  # type: ignore[misc]
            assert await world.ask() == "1: first clean"
    assert told(world) == [(1, 1)] * 3


async def test_a_rollback_leaves_the_weights_for_good_and_is_asked_for_once(world: World) -> None:
    async with heeding(world, leaves=True):
        world.source.publish(ONE)
        await world.attempted()
        world.engine.withhold()
        world.engine.withhold()
        attempt = await world.attempted(2)
        assert (attempt.outcome, attempt.revision.id) == (Outcome.LIVE, "first")
        assert await world.ask() == "3: first clean"
        await asyncio.sleep(0.05)
        assert world.replica.live.number == 3
    assert world.restarted_ledger().refused["r1"].reason.code == "nonfinite_answers"
    assert told(world) == [(2, 2)]


async def pin(world: World) -> None:
    await world.operator.pin()


async def forget(world: World) -> None:
    world.ledger.generations.clear()


@pytest.mark.parametrize("why", [pin, forget])
async def test_where_there_is_no_way_back_it_is_cleaned_all_the_same(
    world: World, why: Callable[[World], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with heeding(world, leaves=True):
        world.source.publish(ONE)
        await world.attempted()
        await why(world)
        world.engine.withhold()
        await world.until(lambda: bool(caplog.records))
        assert await world.ask() == "2: r1 clean"
    assert "nonfinite.not_rolled_back" in caplog.text
    assert len(world.attempts) == 1


async def test_what_was_withheld_before_a_swap_is_not_held_against_the_next_weights(
    world: World,
) -> None:
    async with heeding(world, leaves=True):
        async with world.gate.admit():
            world.source.publish(ONE)
            await world.until(lambda: world.gate.state is GateState.HOLDING)
            world.engine.withhold()
        await world.attempted()
        assert await world.ask() == "2: r1 clean"
        await asyncio.sleep(0.05)
        assert world.replica.live.number == 2
    assert told(world) == [(1, 1)]
    assert "first" not in world.ledger.refused


async def test_an_engine_lost_at_the_cleaning_seals_the_gate(world: World) -> None:
    world.steps.faults["scrub"] = lost()
    world.engine.withhold()
    with pytest.raises(EngineLost):
        await react_to_nonfinite_answers(
            world.replica, publish=world.publish, drain_timeout=lambda: 1.0, leave=None
        )
    assert world.gate.state is GateState.SEALED


async def test_a_swap_waits_for_the_cleaning(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(drain_timeout=1))
    world.steps.faults["scrub"] = HANG
    async with heeding(world):
        world.engine.withhold()
        await world.steps.entered["scrub"].wait()
        world.source.publish(ONE)
        await world.steps.entered["stage"].wait()
        await asyncio.sleep(0.01)
        assert not world.steps.entered["exchange"].is_set()
        del world.steps.faults["scrub"]
        world.steps.released["scrub"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE
