"""Swaps under load: nobody fails, nobody gets a mixed answer, nothing is left behind."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hotreload.events import Event, Warmup
from hotreload.feature import Feature
from hotreload.features import FEATURES
from hotreload.types import Mode, Outcome
from tests.engine.real import device_bytes
from tests.integration.running import Load, Running, mixed

pytestmark = pytest.mark.real_engine

SWAPS = 30


@pytest.mark.parametrize(
    ("mode", "features"),
    [
        pytest.param(Mode.DRAIN, FEATURES, marks=pytest.mark.at_night),
        pytest.param(Mode.OVERLAP, (), marks=pytest.mark.at_night),
        (Mode.OVERLAP, FEATURES),
    ],
)
async def test_thirty_swaps_under_sixteen_clients(
    tmp_path: Path, mode: Mode, features: Sequence[Feature]
) -> None:
    """Every size that comes was compiled before: what a swap compiled or left would be seen."""
    sets = (f"reload.mode={mode}", "engine.warm_batches=16")
    running = Running(tmp_path, *sets, features=features)
    running.drop(1)
    async with running.serving():
        await running.until(lambda: any(map(is_warm, running.happened)))
        await swap_under_load(running, range(2, 6))
        before = await settled(running)
        await swap_under_load(running, range(6, 6 + SWAPS))
        assert await settled(running) == before
    assert running.exit_code == 0


def is_warm(event: Event) -> bool:
    return isinstance(event, Warmup) and event.is_over


async def swap_under_load(running: Running, numbers: range) -> None:
    """Each goes live, while every answer is exactly what the generation named in it says."""
    first = running.live.number
    async with Load(running).on() as load:
        for number in numbers:
            attempt = await running.attempted(running.drop(number))
            assert attempt.outcome is Outcome.LIVE, attempt
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert {number for number, _ in load.answers} >= set(range(first, first + len(numbers)))


async def settled(running: Running) -> tuple[int, int]:
    """Device bytes and compilations, after a few requests: the engine keeps its last batches.

    The scrub waits until it is idle: an answer is out before the last KV buffer is free.
    """
    for _ in range(3):
        await running.ask()
    await running.engine.switch.scrub()
    return await device_bytes(), running.engine.recompiles


async def test_a_swap_of_an_idle_engine_compiles_nothing(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.drop(1)
    async with running.serving():
        await running.attempted(running.drop(2))
        before = await settled(running)
        for number in range(3, 9):
            await running.attempted(running.drop(number))
            assert await settled(running) == before
