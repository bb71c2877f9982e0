"""The demo as a new user runs it, and that it tells of what went wrong."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload.cli.client import DaemonClient, Where
from hotreload.cli.demo import STORY, Told, ending, print_closing
from hotreload.cli.demo_clients import Clients
from tests.integration.process import START_SECONDS

LAST_LINE = "Ctrl-C ends it"
NOWHERE = DaemonClient(Where(Path("/nowhere"), "the test"))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary ones whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Path(folder)


@pytest.mark.real_engine
@pytest.mark.timeout(240)
def test_the_demo_tells_the_whole_story_serves_on_and_leaves_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "hotreload.cli", "demo", "--keep"]
    with told.open("wb") as out:
        demo = subprocess.Popen(command, stdout=out, env={**os.environ, "TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 2 * START_SECONDS
        while LAST_LINE not in told.read_text():  # to see it print is all there is to wait for
            assert demo.poll() is None, told.read_text()
            assert time.monotonic() < deadline, told.read_text()
            time.sleep(0.1)
        text = told.read_text()
        (page,) = re.findall(r"http://127\.0\.0\.1:\d+/", text)
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert b"<title>hotreload" in answer.read()
        (socket,) = re.findall(r"HOTRELOAD_SOCKET=(\S+)", text)
        daemon = DaemonClient(Where(Path(socket), "the demo"))
        assert daemon.get("/status")["label"] == "step_3"
        demo.send_signal(signal.SIGHUP)  # as a terminal does that is closed
        assert demo.wait(60) == 0
    finally:
        demo.kill()
        demo.wait()
    assert list(temporary.iterdir()) == []
    assert not Path(socket).exists()
    for chapter in STORY:
        outcome = "rolled back" if chapter.code == "probe" else chapter.outcome
        assert re.search(rf"^{chapter.label} +{outcome} +{chapter.code or ''}", text, re.MULTILINE)
    assert "failed requests: 0" in text
    assert "not exactly what their generation says: 0" in text


ATTEMPT = {
    "generation": 2,
    "outcome": "live",
    "code": None,
    "rolled_back": False,
    "phases": {},
    "pause_seconds": 0.1,
}


@pytest.mark.parametrize(
    ("attempt", "answers", "failures", "told"),
    [
        ({}, [(1, "served by step 1"), (2, "served by step 2")], [], "failed requests: 0"),
        ({}, [], ["Unreachable: it broke off"], "Unreachable: it broke off"),
        ({}, [(2, "served by step 1")], [], "(2, 'served by step 1')"),
        ({"outcome": "rejected", "code": "shape"}, [], [], "step_2: expected live , got rejected"),
    ],
)
def test_a_story_that_goes_another_way_is_no_success(
    capsys: pytest.CaptureFixture[str],
    attempt: dict[str, object],
    answers: list[tuple[int, str]],
    failures: list[str],
    told: str,
) -> None:
    chapters = [(STORY[0], {**ATTEMPT, **attempt})]
    is_well = print_closing(Told(chapters, Clients(NOWHERE, 0, answers, failures)))
    assert is_well == (told == "failed requests: 0")
    assert told in capsys.readouterr().out


def test_requests_that_fail_in_a_swap_are_counted_in_its_line() -> None:
    assert "none failed" in ending(ATTEMPT, 0)
    assert "3 failed" in ending(ATTEMPT, 3)
