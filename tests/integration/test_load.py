"""Swaps under load: nobody fails, nobody gets a mixed answer, nothing is left behind."""

from pathlib import Path

import pytest

from hotreload.types import Outcome
from tests.engine.real import device_bytes
from tests.integration.running import Load, Running, mixed

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]

SWAPS = 30


async def test_thirty_swaps_under_sixteen_clients(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.drop(1)
    async with running.serving():
        for number in (2, 3):  # from here on a previous generation is kept: two sets, always
            await running.attempted(running.drop(number))
        await warm_up(running)
        bytes_before = await settled_bytes(running)
        recompiled = running.daemon.engine.recompiles
        async with Load(running).on() as load:
            for number in range(4, 4 + SWAPS):
                attempt = await running.attempted(running.drop(number))
                assert attempt.outcome is Outcome.LIVE, attempt
        bytes_after = await settled_bytes(running)
        recompiles = running.daemon.engine.recompiles - recompiled
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert len(load.answers) > SWAPS * 10
    assert {number for number, _ in load.answers} >= set(range(5, 5 + SWAPS - 2))
    assert bytes_after == bytes_before
    assert recompiles == 0
    assert running.exit_code == 0


async def settled_bytes(running: Running) -> int:
    """Device bytes after the same few requests: the engine keeps its last two batches."""
    for _ in range(3):
        await running.ask()
    return await device_bytes()


async def warm_up(running: Running) -> None:
    """Every batch size the load can make compiles once, as after any start."""
    for clients in (1, 2, 4, 8, 16):
        async with Load(running, clients).on() as load:
            await running.ask()
            await running.ask()
        assert load.failures == []
