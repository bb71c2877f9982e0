"""What the pages show is what happens."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.check import findings
from hotreload.checkpoint.fit import Policy
from hotreload.cli.trial.demo import STORY, Chapter, DemoResult, print_closing
from hotreload.cli.trial.demo_stage import ClientAnswer, Clients, sentence_of
from hotreload.client.synchronous import Client
from hotreload.features import FEATURES
from hotreload.settings.load import load
from hotreload.tiny import write_tiny
from hotreload.types import Phase
from tests.docs.pages import PAGES, ROOT, blocks, section

WITH_CONSOLE = [page for page, text in PAGES.items() if blocks("console", text)]
SCRIPT = ROOT / "examples/fingerprint.py"
DURATION = re.compile(r"\b[\d.]+ m?s\b")


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_file_of_settings_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "hotreload.toml"
    file.write_text(text)
    load(file, [], {}, FEATURES)


@pytest.mark.parametrize("page", WITH_CONSOLE)
def test_the_console_shows_what_it_shows(page: str, tmp_path: Path) -> None:
    """All blocks of a page in one folder, in their order; digits, and only they, may differ."""
    shells = blocks("console", PAGES[page])
    examples = [each for shell in shells for each in re.split(r"^\$ ", shell, flags=re.M)[1:]]
    assert len(examples) > 3
    for example in examples:
        command, _, shown = example.partition("\n")
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}"
        assert without_digits(ran.stdout) == without_digits(shown), command


def test_the_script_computes_the_fingerprint_that_check_prints(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", shards=2)
    files = [str(path) for path in folder.glob("*.safetensors")]
    ran = subprocess.run([sys.executable, SCRIPT, *files], stdout=subprocess.PIPE, check=True)
    report = findings(folder, None, Policy(), compute_in="auto")
    assert ran.stdout.decode() == f"{report.fingerprint}\n"


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTRELOAD")}
    here = os.path.dirname(sys.executable)
    assert shutil.which("hotreload", path=here), "the command is not installed: make setup"
    return {**kept, "PATH": f"{here}:{os.environ['PATH']}"}


def without_digits(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def test_the_demo_ends_in_the_table_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = Client(Path("/nowhere"), named_by="the test")
    chapters = [(chapter, attempt_of(chapter)) for chapter in STORY]
    outlast = [ClientAnswer(number, sentence_of(number), 2.0) for number in (1, 2)]
    assert print_closing(DemoResult(chapters, Clients(nowhere, 0, outlast), {2: 1.0, 3: 1.0}))
    shown = section("demo").strip("`\n")
    assert words_of(shown) == words_of(capsys.readouterr().out)


def attempt_of(chapter: Chapter) -> dict[str, Any]:
    return {
        "generation": chapter.number if chapter.outcome == "live" else None,
        "outcome": chapter.outcome,
        "code": chapter.code,
        "rolled_back": False,
        "phases": dict.fromkeys(map(str, Phase), 0.001),
        "pause_seconds": 0.0,
    }


def words_of(table: str) -> list[list[str]]:
    """What stands in each line but for how long things took, and how many there were."""
    lines = DURATION.sub("", table).strip().splitlines()
    counted = (re.sub(r"^\d+ answers|(?<=after a swap: )\d+", "N", line) for line in lines)
    return [line.split() for line in counted]
