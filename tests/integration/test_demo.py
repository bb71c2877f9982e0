"""The demo as a new user runs it, and that it tells of what went wrong."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import hotreload
from hotreload.cli import build_parser
from hotreload.cli.trial.demo import STORY, DemoResult, describe_end, print_closing
from hotreload.cli.trial.demo_stage import ClientAnswer, Clients, repeat
from hotreload.client.synchronous import Client
from tests.integration.process import START_SECONDS
from tests.waiting import PATIENCE, look_until

LAST_LINE = "Ctrl-C ends it"
NOWHERE = Client(Path("/nowhere"), named_by="the test")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary ones whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Path(folder)


@pytest.mark.real_engine
def test_the_demo_tells_the_whole_story_serves_on_and_leaves_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "hotreload.cli", "demo", "--keep"]
    with told.open("wb") as out:
        demo = subprocess.Popen(command, stdout=out, env={**os.environ, "TMPDIR": str(temporary)})
    try:

        def is_told() -> bool:
            assert demo.poll() is None, told.read_text()
            return LAST_LINE in told.read_text()

        look_until(is_told, told.read_text, seconds=2 * START_SECONDS)
        text = told.read_text()
        (page,) = re.findall(r"http://127\.0\.0\.1:\d+/", text)
        with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
            assert b"<title>hotreload" in answer.read()
        (socket,) = re.findall(r"HOTRELOAD_SOCKET=(\S+)", text)
        daemon = Client(Path(socket), named_by="the demo")
        assert daemon.get("/status")["label"] == "step_3"
        assert "step_3, answers" in typed(text, up_to="  hotreload top\n")
        demo.send_signal(signal.SIGHUP)  # as a terminal does that is closed
        assert demo.wait(60) == 0
    finally:
        demo.kill()
        demo.wait()
    assert list(temporary.iterdir()) == []
    assert not Path(socket).exists()
    for chapter in STORY:
        row = rf"^{chapter.label} +{chapter.outcome} +{chapter.code or ''}.* 0 ms +{chapter.what}"
        assert re.search(row, text, re.MULTILINE)
    assert "failed requests: 0" in text
    assert "longest wait: 0 ms" in text
    assert int(re.findall(r"under the old weights after a swap: (\d+)", text)[0]) >= 2
    assert "not exactly what their generation says: 0" in text


def typed(text: str, up_to: str) -> str:
    """What is printed when a user types what the demo proposes, in a terminal of their own."""
    proposed = text.partition("in another terminal:\n")[2]
    lines, told, _ = proposed.partition(up_to)
    done = subprocess.run(
        ["sh", "-ec", f"{lines}{told}"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_readme_and_help_say_the_same_of_how_long_it_takes() -> None:
    readme = (Path(hotreload.__file__).parents[1] / "README.md").read_text()
    (in_readme,) = re.findall(r"the demo takes about (\d+ seconds)", readme)
    assert f"on this machine's CPU, in about {in_readme}\n" in build_parser().format_help()


ATTEMPT = {
    "generation": 2,
    "outcome": "live",
    "code": None,
    "rolled_back": False,
    "phases": {},
    "pause_seconds": 0.0,
}
LIVE_SINCE = {2: 20.0}
OUTLASTS = ClientAnswer(1, "served by step 1served by", 21.0, tokens=7)
"""An answer that went on under the old weights."""
NONE_OUTLASTS = "step_2: no request under way ended under the old weights"


@pytest.mark.parametrize(
    ("attempt", "answers", "failures", "told"),
    [
        ({}, [OUTLASTS, ClientAnswer(2, "served by step 2", 20.5)], [], "failed requests: 0"),
        ({}, [OUTLASTS], ["Unreachable: it broke off"], "Unreachable: it broke off"),
        ({}, [OUTLASTS, ClientAnswer(2, "served by step 1", 20.5)], [], "text='served by step 1'"),
        ({}, [OUTLASTS, ClientAnswer(3, "served by step 3", 20.5)], [], "text='served by step 3'"),
        ({}, [OUTLASTS, ClientAnswer(2, "", 20.5)], [], "text=''"),
        ({"outcome": "rejected", "code": "shape"}, [OUTLASTS], [], "step_2: expected live , got"),
        ({"rolled_back": True}, [OUTLASTS], [], "step_2: it was live before it was rejected"),
        ({"pause_seconds": 0.004}, [OUTLASTS], [], "step_2: requests had to wait 4 ms"),
        ({"pause_seconds": 0.004}, [OUTLASTS], [], "longest wait: 4 ms"),
        ({}, [ClientAnswer(1, "served by step 1", 19.0)], [], NONE_OUTLASTS),
    ],
)
def test_a_story_that_goes_another_way_is_no_success(
    capsys: pytest.CaptureFixture[str],
    attempt: dict[str, object],
    answers: list[ClientAnswer],
    failures: list[str],
    told: str,
) -> None:
    chapters = [(STORY[0], {**ATTEMPT, **attempt})]
    is_well = print_closing(
        DemoResult(chapters, Clients(NOWHERE, 0, answers, failures), LIVE_SINCE)
    )
    assert is_well == (told == "failed requests: 0")
    assert told in capsys.readouterr().out


def test_a_long_answer_is_the_sentence_again_and_again_to_the_last_token() -> None:
    says = "served by step 1"
    told = [repeat(says, tokens) for tokens in (1, 4, 5, 7)]
    assert told == ["served", says, says, f"{says}served by"]


def test_what_a_swap_costs_clients_is_told_in_its_line() -> None:
    assert "nobody waited, none failed; 2 requests still by 1" in describe_end(
        ATTEMPT, 0, "2 requests still by 1"
    )
    assert "nobody waited, 3 failed" in describe_end(ATTEMPT, 3)
    assert "clients waited 4 ms" in describe_end(ATTEMPT | {"pause_seconds": 0.004}, 0)
