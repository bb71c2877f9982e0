"""What operators do by hand and what is remembered of it, on the real engine, across a restart."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload.events import SourceScanned, StateSaved
from hotreload.tiny import write_tiny
from hotreload.types import Outcome
from tests.integration.running import Running, one_daemon, one_daemon_marks, post, words
from tests.waiting import PATIENCE

pytestmark = one_daemon_marks()


running = one_daemon()
"""Each test leaves it on step_2; the last has a daemon of its own, for two lives."""


@pytest_asyncio.fixture(loop_scope="module")
async def at_step_2(running: Running) -> None:
    """Where the first test leaves it: made here when a test runs alone."""
    if not (running.checkpoints / "step_2").exists():
        running.drop(2)
    await running.until(lambda: running.live.revision.label == "step_2")


async def get(running: Running, route: str) -> Any:
    async with running.client() as client:
        return (await client.get(route)).json()


async def tells(running: Running, sample: str) -> None:
    """Wait until the page of metrics says so; it may be some moments old."""
    async with running.client() as client, asyncio.timeout(PATIENCE):
        while sample not in (await client.get("/metrics")).text.splitlines():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def who(by: dict[str, Any]) -> tuple[str, int, int, str]:
    return by["verb"], by["uid"], by["pid"], by["reason"]


async def test_after_the_answer_to_a_pin_nothing_changes_though_a_swap_waited_for_room(
    running: Running,
) -> None:
    async with running.daemon.entrance.admit():  # an answer that takes long
        write_tiny(running.checkpoints / "resharded_step_1", words(1), shards=2)
        answer = await post(running, "reload_weights", model_path="resharded_step_1")
        assert answer.json()["generation"] == 2  # both together take all the room there is
        folder = running.drop(2)
        await running.until(lambda: waits_for_room(running))
        said = (await post(running, "pin", reason="evaluation")).json()
        assert (said["pinned"], said["generation"], said["label"]) == (True, 2, "resharded_step_1")
        assert (await running.attempted(folder)).outcome is Outcome.SUPERSEDED
    assert (await running.ask())["meta_info"]["generation"] == 2
    status = await get(running, "/status")
    assert (status["label"], who(status["pin"])[0]) == ("resharded_step_1", "pin")
    await post(running, "unpin")
    await running.until(lambda: running.live.revision.label == "step_2")


def waits_for_room(running: Running) -> bool:
    """Whether it says whom it waits for."""
    status = running.daemon.status.snapshot()
    waits = "1 request is still answered by generation 1" in (status["waiting_for"] or "")
    return waits and bool(status["phase"] == "draining")


async def test_noise_that_answers_is_seen_by_status_and_metric(running: Running) -> None:
    before = running.live.number
    said = (await post(running, "perturb_weights", seed=1, reason="a look")).json()
    assert (said["outcome"], who(said["by"])) == (
        "live",
        ("perturb", os.getuid(), os.getpid(), "a look"),
    )
    assert (await get(running, "/status"))["noise"] is True
    await tells(running, "hotreload_noise_live 1.0")
    await post(running, "rollback", generation=before, hold=False)
    assert (await get(running, "/status"))["noise"] is False
    await tells(running, "hotreload_noise_live 0.0")


@pytest.mark.usefixtures("at_step_2")
async def test_a_state_folder_that_cannot_be_written_is_told_and_no_promise_is_made(
    running: Running,
) -> None:
    in_the_way = running.folder / "state" / "state.new"
    in_the_way.mkdir()
    refused = await post(running, "pin")
    assert (refused.status_code, refused.json()["code"]) == (503, "not_saved")
    assert "[Errno 21]" in refused.json()["detail"]
    status = await get(running, "/status")
    assert (status["pinned"], status["state_file"]["saved"]) == (False, False)
    await tells(running, "hotreload_state_saved 0.0")
    live = await post(running, "reload_weights", model_path="step_1")
    assert (live.status_code, live.json()["saved"]) == (200, False)
    assert str(running.folder / "state" / "state.json") in live.json()["not_saved"]
    in_the_way.rmdir()
    assert (await post(running, "reload_weights", model_path="step_2")).json()["saved"] is True
    await tells(running, "hotreload_state_saved 1.0")
    told = [event.error is None for event in running.happened if isinstance(event, StateSaved)]
    assert told == [False, True]


@pytest.mark.usefixtures("at_step_2")
async def test_of_equal_weights_a_rollback_takes_the_revision_it_was_asked_for_and_swaps_once(
    running: Running,
) -> None:
    place = next(p for p in running.daemon.ledger.generations if p.revision.label == "step_2")
    folder = write_tiny(running.checkpoints / "resharded_step_9", words(2), shards=2)
    assert (await running.attempted(folder)).outcome is Outcome.LIVE
    assert running.live.fingerprint == place.fingerprint
    assert (await post(running, "reload_weights", model_path="step_1")).status_code == 200
    before = len(running.attempts)
    said = (await post(running, "rollback", generation=place.number, hold=False)).json()
    assert (said["label"], said["generation"]) == ("step_2", running.live.number)
    status = await get(running, "/status")
    assert (status["label"], status["wanted_label"]) == ("step_2", "step_2")
    assert (await running.ask())["meta_info"]["revision"] == place.revision.id
    assert len(running.attempts) == before + 1


async def test_a_reload_of_an_older_one_says_that_it_overrules_the_source_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, "source.rescan=0.2")
    running.drop(1)
    running.drop(2)
    async with running.serving():
        await running.until(lambda: running.daemon.ledger.wanted is not None)
        answer = await post(running, "reload_weights", model_path="step_1", reason="2 is rude")
        assert answer.json()["generation"] == 2
        await tells_who(running)
    async with running.serving():
        looks = running.happened.count(SourceScanned("rescan"))
        await running.until(lambda: running.happened.count(SourceScanned("rescan")) > looks + 1)
        assert running.live.revision.label == "step_1"
        await tells_who(running)
        running.drop(3)
        await running.until(lambda: running.live.revision.label == "step_3")
        assert (await get(running, "/status"))["overruled"] is None
        await tells(running, "hotreload_overruled 0.0")
        past = (await get(running, "/history"))["attempts"]
        by = [(each["label"], each["by"] and each["by"]["verb"]) for each in past]
        assert ("step_1", "reload") in by
        assert by[0] == ("step_3", None)


async def tells_who(running: Running) -> None:
    status = await get(running, "/status")
    assert (status["label"], status["wanted_label"]) == ("step_1", "step_1")
    overruled = status["overruled"]
    assert (overruled["label"], who(overruled)) == (
        "step_2",
        ("reload", os.getuid(), os.getpid(), "2 is rude"),
    )
    await tells(running, "hotreload_overruled 1.0")
