"""`hotreload check org/name@revision`, and the bar that shows how far a download is."""

import json
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload.cli.bar import Bar, bar_text, while_it_lasts
from hotreload.cli.status_text import status_text
from hotreload.core.ledger import Ledger
from hotreload.observe.status import Status
from hotreload.tiny import write_tiny
from tests.cli.conftest import Command
from tests.hub.local_hub import REPO, LocalHub, local_hub

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


async def test_a_folder_that_is_not_there_is_not_looked_for_on_a_hub(
    hotreload: Command, hub: LocalHub
) -> None:
    ran = await hotreload("check", "made/typo")
    assert (ran.code, hub.asked) == (2, [])
    assert "made/typo: is not there" in ran.err


# --- the bar -----------------------------------------------------------------------------------


def test_the_bar_says_how_far_how_fast_and_how_long() -> None:
    said = "[######                  ]  25%  3.0 GiB of 12.0 GiB  100.0 MiB/s  92.2 s left"
    assert bar_text(FAR) == said
    stalled = {**FAR, "bytes_per_second": 0, "seconds_left": None}
    assert bar_text(stalled).endswith("3.0 GiB of 12.0 GiB")


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
        assert re.search(rb"\r\x1b\[K\[#+ +\]  25%", seen)
        assert screen.read(4096).endswith(b"\r\x1b[K")


def test_without_a_terminal_nothing_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Bar().draw(FAR)
    with while_it_lasts(lambda: pytest.fail("nobody looks"), wanted=True):
        pass
    assert capsys.readouterr().err == ""


def test_the_status_shows_a_download_and_since_when_the_hub_was_not_seen() -> None:
    status = Status(ledger_view=Ledger, source_kind="huggingface").snapshot()
    assert "source" not in status_text(status)
    text = status_text({**status, "progress": FAR, "source": status["source"] | {"stale": True}})
    assert re.search(r"^download +\[#+ +\]  25%", text, re.MULTILINE)
    assert re.search(r"^source +stale, not seen since the start$", text, re.MULTILINE)
    seen = {**status["source"], "stale": True, "last_seen": "2023-11-14T22:13:20.000Z"}
    text = status_text({**status, "source": seen})
    assert re.search(r"^source +stale, last seen \d+ d ago$", text, re.MULTILINE)
