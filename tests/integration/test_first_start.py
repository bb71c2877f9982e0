"""A start passes over what it cannot judge, and what is refused is known afterwards."""

import logging
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.check import check_checkpoint
from hotreload.types import Checkpoint, Outcome, Revision
from tests.integration.running import Running, words

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio]


async def test_a_checkpoint_at_which_we_fail_keeps_no_sound_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(tmp_path)

    def check(revision: Revision, path: Path, **more: Any) -> Checkpoint:
        if path.name == "step_2":
            raise TypeError("'int' object is not iterable")
        return check_checkpoint(revision, path, **more)

    monkeypatch.setattr("hotreload.life.live_settings.check_checkpoint", check)
    running.drop(1)
    newest = running.drop(2)
    with caplog.at_level(logging.ERROR):
        async with running.serving():
            assert (await running.ask())["text"] == words(1)
            attempt = await running.attempted(newest)
            assert attempt.outcome is Outcome.REJECTED
            assert attempt.reason is not None
            assert attempt.reason.code == "internal"
            refused = [each.revision.label for each in running.daemon.ledger.refused.values()]
            assert refused == ["step_2"]
            tried = [(each.revision.label, each.outcome) for each in running.attempts]
            assert tried == [("step_2", Outcome.REJECTED), ("step_1", Outcome.LIVE)]
            async with running.client() as client:
                (started, refusal) = (await client.get("/history")).json()["attempts"]
                page = (await client.get("/metrics")).text
            assert (started["generation"], started["by"]["verb"]) == (1, "start")
            assert (refusal["label"], refusal["by"]["verb"]) == ("step_2", "start")
            assert 'hotreload_rejections_total{reason="internal"} 1.0' in page
            assert 'hotreload_reloads_total{outcome="live"} 1.0' in page
    assert running.exit_code == 0
    (record,) = [each for each in caplog.records if each.message == "reload.internal_error"]
    assert record.exc_info is not None
