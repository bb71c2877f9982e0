"""Live leaves that are no longer what went live are found, and told until they are whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from hotreload.core.engines.background import verify_live
from hotreload.errors import EngineLost
from hotreload.events import LiveDrifted, LiveVerified
from hotreload.types import GateState, Outcome, Revision
from tests.core.conftest import World
from tests.fakes import lost
from tests.waiting import turn_until

NEW = Revision("new", "step_1")
OFTEN = 0.005
WHOLE: tuple[str, ...] = ()


class Looks:
    """The engine's checksums, counted, and broken or stopped by a test."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self.fault: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._world = world

    async def __call__(self) -> dict[str, int]:
        self.count += 1
        self._world.look_again()
        await self.may_end.wait()
        if self.fault is not None:
            raise self.fault
        return await self._world.engine.checksums()


@asynccontextmanager
async def verifying(world: World, **more: Any) -> AsyncIterator[Looks]:
    """The core as the daemon runs it, with somebody who verifies what is live."""
    looks = Looks(world)
    how: dict[str, Any] = {"every": OFTEN, "publish": world.publish, **more}
    work = verify_live(world.replica, checksums=looks, **how)
    task = asyncio.create_task(work)
    async with world.running():
        try:
            yield looks
        finally:
            task.cancel()
            await asyncio.wait({task})


def told(world: World) -> list[tuple[int, tuple[str, ...]]]:
    """What was found: of which generation, and which leaves drifted."""
    found = []
    for each in world.happened:
        if isinstance(each, LiveDrifted):
            found.append((each.generation.number, each.leaves))
        elif isinstance(each, LiveVerified):
            found.append((each.generation.number, WHOLE))
    return found


async def test_weights_that_are_whole_are_told_to_be_each_time(world: World) -> None:
    async with verifying(world):
        await world.until(lambda: len(told(world)) >= 3)
    assert set(told(world)) == {(1, WHOLE)}


async def test_a_leaf_that_drifted_is_named_until_it_is_whole_again(world: World) -> None:
    async with verifying(world):
        world.engine.damage["leaf"] = -1
        await world.until(lambda: told(world)[-2:] == [(1, ("leaf",))] * 2)
        world.engine.damage.clear()
        await world.until(lambda: told(world)[-1] == (1, WHOLE))


async def test_leaves_that_came_or_went_have_drifted_too(world: World) -> None:
    world.engine.damage["stray"] = 5
    async with verifying(world):
        await world.until(lambda: told(world)[:1] == [(1, ("stray",))])


async def test_it_compares_with_what_is_live_at_that_moment(world: World) -> None:
    async with verifying(world):
        world.source.publish(NEW)
        await world.attempted()
        await world.until(lambda: told(world)[-1:] == [(2, WHOLE)])
    assert all(leaves == WHOLE for _, leaves in told(world))


async def test_it_waits_for_a_moment_without_requests(world: World) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    async with AsyncExitStack() as client:
        await client.enter_async_context(world.gate.admit())
        async with verifying(world, every=60.0, sleep=sleep) as looks:
            await turn_until(lambda: bool(slept))
            await asyncio.sleep(0.01)
            assert (slept, looks.count) == ([60.0], 0)
            await client.aclose()
            await world.until(lambda: looks.count >= 1)


async def test_an_engine_that_is_never_idle_is_verified_all_the_same(world: World) -> None:
    async with verifying(world), world.gate.admit():
        await world.until(lambda: len(told(world)) >= 2)
        assert world.gate.inside == 1


async def test_a_swap_waits_until_it_is_known_what_was_live(world: World) -> None:
    async with verifying(world) as looks:
        looks.may_end.clear()
        await world.until(lambda: looks.count > 0)
        world.source.publish(NEW)
        await world.steps.entered["stage"].wait()
        await asyncio.sleep(0.02)
        assert not world.steps.entered["exchange"].is_set()
        assert await world.ask() == "1: first clean"
        looks.may_end.set()
        assert (await world.attempted()).outcome is Outcome.LIVE
    assert told(world)[0] == (1, WHOLE)


async def test_a_look_that_fails_says_nothing_and_is_not_the_last(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with verifying(world) as looks:
        looks.fault = RuntimeError("no memory for it")
        await world.until(lambda: looks.count >= 2)
        assert told(world) == []
        looks.fault = None
        await world.until(lambda: told(world)[:1] == [(1, WHOLE)])
    assert "verify.not_done" in caplog.text


async def test_an_engine_lost_meanwhile_seals_the_gate(world: World) -> None:
    looks = Looks(world)
    looks.fault = lost()
    with pytest.raises(EngineLost):
        await verify_live(world.replica, checksums=looks, every=OFTEN, publish=world.publish)
    assert world.gate.state is GateState.SEALED
