"""While weights are staged it is told how far the engine is with it."""

import asyncio
from pathlib import Path

import pytest

from hotreload.core import progress
from hotreload.core.rules import Rules
from hotreload.events import PhaseEntered, Progress
from hotreload.types import HowFar, LoadFacts, Mode, Noise, Outcome, Phase, Revision
from tests.core.conftest import World
from tests.core.overlapping import Overlapping
from tests.fakes import HANG

NEW = Revision("new", "step_1")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PUBLISH_SECONDS", 0.001)


@pytest.fixture(params=list(Mode))
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    if request.param is Mode.OVERLAP:
        return Overlapping(tmp_path)
    return World(tmp_path, Rules(drain_timeout=0.05, probe_timeout=0.05, prove_within=0.01))


def told(world: World) -> list[tuple[int, int]]:
    events = (each for each in world.happened if isinstance(each, Progress))
    assert all((each.revision, each.phase) == (NEW, Phase.STAGING) for each in events)
    return [(e.done, e.total) for e in world.happened if isinstance(e, Progress)]


async def test_each_step_of_staging_is_told_once_and_nothing_after_it(world: World) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await world.until(lambda: told(world) == [(0, 10)])
        world.engine.staging_progress = HowFar(4, 10)
        await world.until(lambda: told(world) == [(0, 10), (4, 10)])
        await asyncio.sleep(0.01)  # time for several looks
        world.steps.released["stage"].set()
        assert (await world.attempted()).outcome is Outcome.LIVE
    of = [each for each in world.happened if isinstance(each, Progress | PhaseEntered)]
    begun = of.index(PhaseEntered(NEW, Phase.STAGING))
    assert of[begun + 1 : begun + 3] == [Progress(NEW, Phase.STAGING, n, 10) for n in (0, 4)]
    assert told(world) == [(0, 10), (4, 10)]


async def test_staging_that_fails_ends_the_telling(world: World) -> None:
    world.steps.faults["stage"] = [RuntimeError("oops")]
    async with world.running():
        world.source.publish(NEW)
        assert (await world.attempted()).outcome is Outcome.REJECTED
        world.engine.staging_progress = HowFar(1, 10)
        await asyncio.sleep(0.01)
        assert (1, 10) not in told(world)


async def test_bytes_that_are_read_are_counted_and_shared_leaves_are_not(world: World) -> None:
    world.engine.loading = LoadFacts("own", leaves_staged=1, leaves_shared=9, bytes_read=3)
    async with world.running():
        world.source.publish(NEW)
        attempt = await world.attempted()
        assert attempt.loading == world.engine.loading
        assert world.replica.staged_bytes == 3
        await (await world.operator.perturb(Noise(num_leaves=1)))
        assert world.replica.staged_bytes == 3 + 10
