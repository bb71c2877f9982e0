"""An engine that dies under clients: sealed at once, 503 for all, exit code 70."""

import asyncio
import time
from pathlib import Path

import pytest

from hotreload.errors import NotServing
from hotreload.types import GateState
from tests.integration.running import Running, request_for

pytestmark = pytest.mark.real_engine


async def test_a_dead_scheduler_thread_is_noticed_and_nobody_is_answered_any_more(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path)
    running.drop(1)
    began = time.time()
    async with running.serving(), running.client() as client:
        await running.ask()
        asked = time.monotonic()
        await running.ask()
        usual = time.monotonic() - asked
        scheduler = running.engine._parts.running_scheduler.scheduler
        scheduler.get_next_batch_to_run = None  # the next step raises on the engine's own thread
        asking = asyncio.create_task(client.post("/generate", json=request_for("x")))
        died = time.monotonic()
        await running.until(lambda: running.daemon.entrance.gates[0].state is GateState.SEALED)
        assert time.monotonic() - died < max(1, 20 * usual)  # on a slow machine
        assert (await asking).status_code == 503
        with pytest.raises(NotServing):
            async with running.daemon.entrance.admit():
                pass
        assert running.daemon.status.snapshot()["state"] == "lost"
        ready, reasons = running.daemon.status.picture.ready()
        assert not ready
        assert "thread" in reasons[0]
    assert running.exit_code == 70
    assert running.daemon.state.read().lost_at > began  # so that the next life can tell of it
