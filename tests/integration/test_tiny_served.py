"""What `hotreload tiny` prints is typed as it stands, in a shell, and serves."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError
from hotreload.facts.names import DEFAULT_SOCKET, DEFAULT_STATE
from tests.integration.process import START_SECONDS
from tests.waiting import look_until

pytestmark = pytest.mark.real_engine

OF_THE_SYSTEM = (DEFAULT_SOCKET.parent, DEFAULT_STATE)


class Shell:
    """A shell in a folder, where `hotreload` is the command, and XLA may write what it likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin = Path(sys.executable).parent
        assert shutil.which("hotreload", path=bin), "the command is not installed: make setup"
        unset = ("TF_CPP_MIN_LOG_LEVEL", "HOTRELOAD_SOCKET", "HOTRELOAD_CONFIG")
        self.env = {name: value for name, value in os.environ.items() if name not in unset}
        self.env["PATH"] = f"{bin}:{os.environ['PATH']}"

    def says(self, line: str) -> str:
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @contextmanager
    def running(self, line: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.env, stderr=stderr
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def commands_in(told: str) -> Mapping[str, str]:
    """The commands that were printed, by what stands before each."""
    return dict(re.findall(r"^  ([^:\n]+):\s+(hotreload (?:.*\\\n)*.*)$", told, re.MULTILINE))


def test_the_lines_that_tiny_prints_serve_it_ask_it_and_make_the_next_one_live(
    tmp_path: Path,
) -> None:
    before = {folder: folder.exists() and folder.stat() for folder in OF_THE_SYSTEM}
    shell = Shell(tmp_path)
    typed = commands_in(shell.says("hotreload tiny \"it's; a model\" --say 'served by step 1'"))
    assert list(typed) == ["check it", "serve it", "ask it", "make the next live"]
    assert shell.says(typed["check it"]).startswith("fit: ")
    log, socket = tmp_path / "log", Path(shlex.split(typed["ask it"])[-1])
    daemon = Client(tmp_path / socket, named_by="what tiny printed")

    def live(label: str, generation: int) -> bool:
        try:
            status = daemon.get("/status")
        except HotReloadError:
            status = {}
        assert serving.poll() is None, log.read_text()
        return (status.get("label"), status.get("generation")) == (label, generation)

    with shell.running(typed["serve it"], log) as serving:
        look_until(lambda: live("it's; a model", 1), log.read_text, seconds=START_SECONDS)
        assert shell.says(typed["ask it"]) == "served by step 1\n"
        shell.says(typed["make the next live"])
        look_until(lambda: live("it's; a model", 2), log.read_text)
        assert shell.says(typed["ask it"]) == "served by step 2\n"
        serving.terminate()
        assert serving.wait() == 0
    assert {folder: folder.exists() and folder.stat() for folder in OF_THE_SYSTEM} == before
    strange = [line for line in log.read_text().splitlines() if not line.startswith("{")]
    assert strange == []  # of XLA, two lines for each program that it had compiled before
