"""`hotreload check org/name@revision`, and the bar that shows how far a download is."""

import asyncio
import json
import os
import pty
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.digests import Digests
from hotreload.cli.bar import Bar, Lines, bar_text, while_it_lasts
from hotreload.cli.client.texts import status_text
from hotreload.errors import HotReloadError
from hotreload.events import Progress, SourceScanned
from hotreload.picture.picture import Setup
from hotreload.picture.rows import rows_of
from hotreload.sources.hub.snapshots import Snapshots
from hotreload.sources.huggingface import download
from hotreload.tiny import write_tiny
from hotreload.types import Phase
from tests.cli.conftest import Command
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.observe.things import Told
from tests.server.world import SECOND, World, attempt
from tests.waiting import PATIENCE

FAR = {
    "done_bytes": 3 * 2**30,
    "total_bytes": 12 * 2**30,
    "bytes_per_second": 100 * 2**20,
    "seconds_left": 92.2,
}


@pytest.fixture
def hub(hotreload: Command) -> Iterator[LocalHub]:
    """A hub that the command asks, with a tiny checkpoint under a tag."""
    with local_hub() as made:
        made.push(write_tiny(hotreload.folder / "made"), branch="v1")
        hotreload.environ |= {
            "HF_ENDPOINT": made.url,
            "HF_HOME": str(hotreload.folder / "home"),
            "XDG_CACHE_HOME": str(hotreload.folder / "cache"),
        }
        yield made


async def test_a_revision_on_a_hub_is_checked_after_a_download(
    hotreload: Command, hub: LocalHub
) -> None:
    ran = await hotreload("check", f"{REPO}@v1", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["fit"] is True
    again = await hotreload("check", f"{REPO}@v1")
    assert again.out.startswith("fit: ")
    assert hub.count("/cdn/") == 1
    assert len(list((hotreload.folder / "cache/hotreload/hub/org--name").glob("?" * 40))) == 1


async def test_what_cannot_be_downloaded_is_said_with_what_to_do(
    hotreload: Command, hub: LocalHub
) -> None:
    hub.token = "hf_right"
    token = hotreload.folder / "token"
    token.write_text("hf_wrong\n")
    ran = await hotreload("check", f"{REPO}@v1", "--token-file", str(token))
    assert (ran.code, ran.out) == (2, "")
    assert "401: the hub wants a token" in ran.err
    assert "hf_wrong" not in ran.err
    token.write_text("hf_right\n")
    assert (await hotreload("check", f"{REPO}@v1", "--token-file", str(token))).code == 0
    ran = await hotreload("check", f"{REPO}@v2", "--token-file", str(token))
    assert "has no such branch, tag or commit" in ran.err


async def test_a_download_that_is_refused_is_a_finding_and_exits_1(
    hotreload: Command, hub: LocalHub
) -> None:
    hub.fault("/cdn/", corrupt=True, times=100)
    ran = await hotreload("check", f"{REPO}@v1", "--json")
    assert (ran.code, ran.err) == (1, "")
    said = json.loads(ran.out)
    assert (said["fit"], said["content_id"]) == (False, None)
    (finding,) = said["findings"]
    assert finding["code"] == "digest"
    assert "came 3 times with other bytes" in finding["message"]
    assert "the same command asks for it again" in finding["message"]
    hub.push({"pytorch_model.bin": b"a pickle"}, branch="v1")
    ran = await hotreload("check", f"{REPO}@v1")
    assert (ran.code, ran.err) == (1, "")
    assert "format  org/name@" in ran.out
    assert "holds no safetensors file at its top; it holds pytorch_model.bin, which" in ran.out
    assert ran.out.endswith("\nNOT FIT: 1 finding\n")


FAULTS_OF_A_HUB: dict[str, tuple[dict[str, Any], str]] = {
    "no token": ({"status": 401}, "give --token-file or set HF_TOKEN, or check"),
    "no repo": ({"status": 404, "code": "RepoNotFound"}, "check the name, and --token-file or"),
    "no branch": ({"status": 404, "code": "RevisionNotFound"}, "check what stands behind the @"),
    "limited": ({"status": 429, "headers": {"Retry-After": "9"}}, "for 9 s; run it again then"),
    "odd": ({"status": 418}, "understand us; check HF_ENDPOINT"),
    "no hub": ({"status": 200}, "check HF_ENDPOINT"),
}


@pytest.mark.parametrize("case", FAULTS_OF_A_HUB)
async def test_what_to_do_is_said_in_words_of_the_command(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fault, words = FAULTS_OF_A_HUB[case]
    hub.fault("HEAD", **fault)
    with pytest.raises(HotReloadError) as caught:
        await one_download(tmp_path / "cache")
    assert words in str(caught.value)
    assert "[source]" not in str(caught.value)


async def test_where_a_download_cannot_go_is_said_in_words_of_the_command(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (tmp_path / "a file").write_text("")
    with pytest.raises(HotReloadError, match="check --cache"):
        await one_download(tmp_path / "a file")
    busy, told = (
        Snapshots(tmp_path / "cache", REPO, digests=Digests()).hold_lock(),
        "give each its own --cache",
    )
    with busy, pytest.raises(HotReloadError, match=told):
        await one_download(tmp_path / "cache")


async def one_download(cache: Path) -> Path:
    return await download(
        f"{REPO}@v1",
        cache=cache,
        digests=Digests(),
        publish=lambda event: None,
        token=lambda: None,
    )


async def test_a_folder_that_is_not_there_is_not_looked_for_on_a_hub(
    hotreload: Command, hub: LocalHub
) -> None:
    ran = await hotreload("check", "made/typo")
    assert (ran.code, hub.asked) == (2, [])
    assert "made/typo: is not there" in ran.err


# --- the bar -----------------------------------------------------------------------------------


def test_the_bar_says_how_far_how_fast_and_how_long() -> None:
    said = "[######                  ]  25%  3.2 GB of 12.9 GB, 105 MB/s, 92.2 s left"
    assert bar_text(FAR) == said
    stalled = {**FAR, "bytes_per_second": 0, "seconds_left": None}
    assert bar_text(stalled).endswith("3.2 GB of 12.9 GB, waiting for data")


def test_a_terminal_sees_the_bar_and_it_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", 0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        drawn = threading.Event()

        def look() -> dict[str, float]:
            drawn.set()
            return FAR

        with while_it_lasts(look, wanted=True):
            assert drawn.wait(20)
            seen = screen.read(4096)
            while b"left" not in seen:
                seen += screen.read(4096)
        assert re.search(rb"\r\x1b\[Kfetching  \[#+ +\]  25%", seen)
        assert screen.read(4096).endswith(b"\r\x1b[K")


class Screen:
    """The terminal that a verb's stderr is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = b""

    async def shows(self, pattern: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while not re.search(pattern, self.seen):
                assert await self._read(), self.seen

    async def rest(self) -> bytes:
        """All that was written, once the verb has ended."""
        while await self._read():
            pass
        return self.seen

    async def _read(self) -> bytes:
        try:
            came = await asyncio.to_thread(os.read, self._descriptor, 4096)
        except OSError:  # how a terminal that nobody writes to any more ends
            return b""
        self.seen += came
        return came


@asynccontextmanager
async def on_a_terminal(
    hotreload: Command, *args: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Screen]]:
    ours, theirs = pty.openpty()
    try:
        process = await hotreload.start(*args, stderr=theirs)
    finally:
        os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


async def test_a_reload_that_is_waited_for_draws_the_bar(world: World, hotreload: Command) -> None:
    world.events.publish(Progress(SECOND.revision, Phase.FETCHING, 250, 1000))
    async with on_a_terminal(hotreload, "reload", "--wait") as (process, screen):
        await screen.shows(rb"\r\x1b\[Kfetching  \[#+ +\]  25%  250 B of ")
        assert world.control.promise is not None
        world.control.promise.set_result(attempt())
        out, _ = await process.communicate()
        assert (process.returncode, b"is live as generation 2" in out) == (0, True)
        assert (await screen.rest()).endswith(b"\r\x1b[K")


@pytest.mark.parametrize("verb", ["swap", "check"])
async def test_a_verb_that_downloads_draws_the_bar(
    hotreload: Command, hub: LocalHub, verb: str
) -> None:
    held = hub.fault("/cdn/", hold=1000, corrupt=True)
    hub.fault("/cdn/", corrupt=True, times=100)  # so that no engine is started in the end
    name = f"{REPO}@v1"
    args = ("check", name) if verb == "check" else ("swap", "--model", name, "--checkpoint", name)
    async with on_a_terminal(hotreload, *args) as (process, screen):
        await screen.shows(rb"\r\x1b\[Kfetching  \[#* +\] +\d+%  [\d.]+ \w+ of [\d.]+ [kM]B")
        held.release.set()
        out, _ = await process.communicate()
        assert (process.returncode, b"came 3 times with other bytes" in out) == (1, True)
        assert (await screen.rest()).endswith(b"\r\x1b[K")


def test_without_a_terminal_nothing_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Bar().draw(FAR)
    with while_it_lasts(lambda: pytest.fail("nobody looks"), wanted=False):
        pass
    with while_it_lasts(lambda: FAR, wanted=True):
        pass  # what is over soon is not worth a line
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_line_is_written_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lines, "every", 0.01)
    looks: list[dict[str, Any] | None] = [{**FAR, "phase": "staging"}, FAR, None]
    over = threading.Event()

    def look() -> dict[str, Any] | None:
        if not looks:
            over.set()
        return looks.pop() if looks else None

    with while_it_lasts(look, wanted=True):
        assert over.wait(20)
    assert capsys.readouterr().err.splitlines() == [
        "fetching: 25%, 3.2 GB of 12.9 GB, 105 MB/s, 92.2 s left",
        "staging: 25%, 3.2 GB of 12.9 GB, 105 MB/s, 92.2 s left",
    ]


def test_the_status_shows_a_download_and_since_when_the_hub_was_not_seen() -> None:
    watching = Told(setup=Setup(source_kind="huggingface"))
    status = watching.snapshot()

    def shown(**fields: Any) -> str:
        other = status | fields
        return status_text({**other, "rows": rows_of(other)})

    text = shown(progress=FAR)
    assert re.search(r"^download +\[#+ +\]  25%", text, re.MULTILINE)
    text = shown(progress={**FAR, "phase": "staging"})
    assert re.search(r"^loading +\[#+ +\]  25%", text, re.MULTILINE)
    assert re.search(r"^source +huggingface, stale, not seen since the start$", text, re.MULTILINE)
    watching.observe(SourceScanned("start"))
    assert re.search(r"^source +huggingface$", status_text(watching.snapshot()), re.MULTILINE)
    seen = {**status["source"], "stale": True, "last_seen": "2023-11-14T22:13:20.000Z"}
    text = shown(source=seen)
    local = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    stale = rf"^source +huggingface, stale, last seen {local} \(\d+ d ago\)"
    assert re.search(stale, text, re.MULTILINE)
