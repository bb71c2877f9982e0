"""A start under one client, and under more than are answered at a time, with a slow compiler.

By day eight come, in `test_another_engine_can_be_started_and_closed_beside_it` of test_sglang.py.
"""

from pathlib import Path

import pytest

from tests.engine import real
from tests.engine.slow_compiler import AT_ONCE, nobody_waits_for_the_compiler

pytestmark = [pytest.mark.real_engine, pytest.mark.at_night]


@pytest.mark.parametrize("clients", [1, 32])
async def test_nobody_waits_for_the_compiler(tmp_path: Path, clients: int) -> None:
    folders = real.Folders(tmp_path)
    given = {"warm_batches": AT_ONCE}
    async with real.engine_of(folders.folder(1), tmp_path / "spool", **given) as engine:
        await nobody_waits_for_the_compiler(engine, folders.checkpoint(2), clients=clients)
