"""The whole daemon on the real engine, following a hub."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.life.saved.state import FORMER, NEWEST, NUMBER
from hotreload.types import Outcome
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.integration.from_hub import FromHub, hub_settings, tiny_files
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import Load, words
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real_engine


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


async def test_what_it_says_of_a_hub_and_what_an_operator_and_the_hub_may_ask(
    tmp_path: Path, hub: LocalHub
) -> None:
    secret = tmp_path / "webhook"
    secret.write_text("knock knock\n".replace(" ", "-"))
    running = FromHub(tmp_path, hub, "source.poll=1h", f"source.webhook={secret}")
    first = running.push(1)
    async with running.serving():
        status = await running.status()
        source = status["source"]
        assert (source["kind"], source["stale"], source["error"]) == ("huggingface", False, None)
        assert source["last_seen"] is not None
        assert status["progress"] is None

        async with running.client() as client:
            # The webhook makes it look, and nothing else does within the hour.
            second = running.push(2)
            url, right = "/webhook/huggingface", {"X-Webhook-Secret": "knock-knock"}
            assert (await client.post(url)).status_code == 401
            wrong = await client.post(url, headers={"X-Webhook-Secret": "who's there"})
            assert wrong.status_code == 403
            assert "knock" not in wrong.text
            assert (await client.post(url, headers=right, json={"any": "thing"})).is_success
            await running.lives(second)

            # A commit by its name, and one that is not fit.
            hub.point("v1", first)
            answer = await client.post("/admin/reload_weights", json={"revision": "v1"})
            assert (answer.status_code, answer.json()["label"]) == (200, f"{REPO}@v1")
            running.push(3, "nan")
            answer = await client.post("/admin/reload_weights", json={})
            assert (answer.status_code, answer.json()["code"]) == (422, "nonfinite")
            answer = await client.post("/admin/reload_weights", json={"revision": "nonsense"})
            assert answer.status_code == 422
            assert "has no such branch, tag or commit" in answer.json()["detail"]

            # A corrupted download.
            hub.fault("/cdn/", corrupt=True, times=100)
            running.push(4)
            answer = await client.post("/admin/reload_weights", json={})
            assert (answer.status_code, answer.json()["code"]) == (422, "digest")
            assert (await running.ask())["text"] == words(1)

            # The hub is away, and says so.
            hub.fault(".", status=503, times=1000)
            running.daemon.source.wake("signal")
            await running.until(lambda: running.daemon.status.snapshot()["source"]["stale"] is True)
            status = await running.status()
            assert "503: the hub has trouble of its own" in status["source"]["error"]
            assert "503" in status["waiting_for"]
            answer = await client.post("/admin/reload_weights", json={})
            assert (answer.status_code, answer.json()["code"]) == (503, "source")
            assert int(answer.headers["retry-after"]) >= 1
            page = (await client.get("/metrics")).text
            assert 'hotreload_source_scans_total{cause="webhook"} 1.0' in page
            assert "hotreload_fetch_progress_ratio 0.0" in page


async def pushed_every_second(folder: Path, hub: LocalHub, pushes: int) -> None:
    running = FromHub(folder, hub)
    running.push(1)
    async with running.serving():
        async with Load(running, clients=4).on() as load:
            for number in range(2, pushes + 2):
                newest = running.push(number)
                await asyncio.sleep(1)  # the pace is what is tested
            await running.lives(newest)
        assert load.failures == []
        assert running.mixed(load.answers) == []
        outcomes = {attempt.outcome for attempt in running.attempts}
        assert outcomes <= {Outcome.LIVE, Outcome.SUPERSEDED}
        # The newest does not starve what is under way: something goes live all the time.
        assert len(running.generations) > pushes / 4


@pytest.mark.at_night
async def test_a_push_every_second_starves_nobody(tmp_path: Path, hub: LocalHub) -> None:
    await pushed_every_second(tmp_path, hub, 12)


@pytest.mark.soak
async def test_a_push_every_second_for_a_minute_starves_nobody(
    tmp_path: Path, hub: LocalHub
) -> None:
    await pushed_every_second(tmp_path, hub, 60)


# --- as a process ----------------------------------------------------------------------------


class HubProcess(Process):
    """Its engine is one of words: these stories are about downloads and what outlives a process."""

    def __init__(self, folder: Path, hub: LocalHub) -> None:
        super().__init__(folder, command=OF_WORDS)
        self.sets = [*hub_settings(folder, hub), "log.format=json"]

    def lives(self, sha: str) -> None:
        self.until(lambda: (self.get("/status") or {}).get("revision") == sha)


def far(process: Process) -> dict[str, Any] | None:
    """How far the download is, once anything came."""
    progress = process.get("/status")["progress"]
    return progress if progress and progress["done_bytes"] else None


def test_killed_in_mid_download_it_resumes_and_offline_it_serves_what_it_has(
    tmp_path: Path, hub: LocalHub
) -> None:
    process = HubProcess(tmp_path, hub)
    first = hub.push(tiny_files(tmp_path / "made", 1))
    with process.running():
        process.lives(first)
        held = hub.fault("/cdn/", hold=70_000)
        second = hub.push(tiny_files(tmp_path / "made", 2))
        assert held.seen.wait(PATIENCE)
        partial = tmp_path / "state/hub/org--name" / f".partial-{second}" / "model.safetensors"
        process.until(lambda: far(process) is not None)
        progress = far(process)
        assert progress is not None
        assert 0 < progress["done_bytes"] < progress["total_bytes"]
        os.kill(process.child.pid, signal.SIGKILL)
        process.child.wait()
        held.release.set()
    there = partial.stat().st_size
    hub.asked.clear()
    with process.running():
        process.lives(second)
        ranges = [asked.range for asked in hub.asked if "/cdn/" in asked.line]
        assert ranges == [f"bytes={there}-"]
        assert process.ask()["text"] == words(2)
        assert process.stop() == 0
    hub.fault(".", drop=True, times=100_000)
    with process.running():
        process.until(lambda: process.get("/status")["source"]["stale"])
        status = process.get("/status")
        assert (status["state"], status["revision"]) == ("serving", second)
        assert process.ask()["text"] == words(2)
        assert process.stop() == 0
    for name in (NEWEST, FORMER, NUMBER):  # what was live is forgotten, the files are not
        (tmp_path / "state" / name).unlink()
    with process.running():
        process.lives(second)
        assert process.ask()["text"] == words(2)
        assert process.stop() == 0


def test_a_cleared_cache_is_filled_again_with_the_last_good_commit(
    tmp_path: Path, hub: LocalHub
) -> None:
    process = HubProcess(tmp_path, hub)
    good = hub.push(tiny_files(tmp_path / "made", 1))
    with process.running():
        bad = hub.push(tiny_files(tmp_path / "made", 2, "nan"))
        process.until(lambda: process.get("/status")["refused"])
        assert process.stop() == 0
    shutil.rmtree(tmp_path / "state" / "hub")
    with process.running():
        process.until(lambda: process.get("/status")["wanted"] == bad)
        status = process.get("/status")
        assert (status["revision"], status["generation"]) == (good, 1)
        assert process.ask()["text"] == words(1)
        assert process.stop() == 0
