"""Nobody waits for a swap: new weights take over while older ones end their answers."""

from pathlib import Path

import pytest

from hotreload.types import Outcome
from tests.integration.running import Running, post
from tests.integration.streaming import ENGINE, Streaming, was_held

pytestmark = pytest.mark.real_engine

NEW, BACK = 5, 25
"""How many of the flips are to a new checkpoint, and how many back to the one before."""


async def flipped_back(running: Running) -> None:
    """Roll back to the weights that were live before: they answer still, or are kept."""
    before = running.generations[-2].number
    answer = await post(running, "rollback", generation=before, hold=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["pause_seconds"] == 0.0


async def test_thirty_flips_under_sixteen_streams(tmp_path: Path) -> None:
    running = Running(tmp_path, ENGINE, "reload.sets=3")
    running.drop(1)
    async with running.serving():
        async with Streaming(running).on() as load:
            for number in range(2, 2 + NEW):
                attempt = await running.attempted(running.drop(number))
                assert (attempt.outcome, attempt.pause_seconds) == (Outcome.LIVE, 0.0), attempt
                for _ in range(BACK // NEW):
                    await flipped_back(running)
                if number == 2:
                    compiled = running.engine.recompiles
        assert load.failures == []
        assert load.wrong() == []
        assert load.most_held == 0
        assert not was_held(running)
        assert len({number for number, *_ in load.answers}) >= NEW
        # Upstream compiles for each size of a batch that comes for the first time, and which come
        # is chance; a flip that compiled would do so each time (test_load: an idle one never does).
        assert running.engine.recompiles - compiled < NEW + BACK - 6
        await ended(running)
        # By upstream's own reckoning, once nothing is under way.
        scheduler = running.engine._scheduler.scheduler
        await running.engine.switch.between.run(scheduler.check_memory)


async def ended(running: Running) -> None:
    """Until one set of weights answers: every older one has ended."""

    def is_alone() -> bool:
        return len(running.daemon.entrance.list_answering()) == 1

    await running.until(is_alone)
    replica = running.daemon.slot.replicas().first
    await running.until(lambda: not replica.fading)
