"""`hotreload top` on a terminal (tmux), before a real daemon on an engine of words."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.integration.process import OF_WORDS, Process
from tests.waiting import PATIENCE, look_until

pytestmark = pytest.mark.skipif(
    not shutil.which("tmux"), reason="there is no tmux: apt-get install tmux"
)

PROMPT = "ready>"


class Terminal:
    """A shell in a tmux of its own."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self._server = str(folder / "tmux")
        self._socket = socket
        self.tell("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "sh")

    def tell(self, *words: str) -> str:
        command = ["tmux", "-S", self._server, *words]
        # Without the size that readline, which pytest imports, sets for its children.
        env = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def type(self, text: str) -> None:
        self.tell("send-keys", "-t", "t", "-l", text)
        self.press("Enter")

    def press(self, key: str) -> None:
        self.tell("send-keys", "-t", "t", key)

    def screen(self, *how: str) -> str:
        return self.tell("capture-pane", "-p", "-t", "t", *how)

    def child(self) -> int:
        """The process that the shell runs now."""
        shell = self.tell("display-message", "-p", "-t", "t", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text())

    def top(self, before: str = "") -> None:
        """Start it, as this process's Python runs it."""
        self.type("clear")
        path = f"HOTRELOAD_SOCKET={self._socket} PYTHONPATH={Path.cwd()}"
        self.type(f"{path} {before} {sys.executable} -m hotreload.cli top; echo ended: $?")

    def shows(self, *words: str) -> str:
        return self.until(lambda text: all(word in text for word in words), words)

    def until(self, holds: Callable[[str], bool], what: object) -> str:
        text = ""

        def is_shown() -> bool:
            nonlocal text
            text = self.screen()
            return holds(text)

        look_until(is_shown, lambda: f"never seen: {what}\n{text}")
        return text


@contextmanager
def terminal(folder: Path, socket: Path) -> Iterator[Terminal]:
    shell = Terminal(folder, socket)
    try:
        shell.type(f"PS1='{PROMPT}'; clear")
        shell.shows(PROMPT)
        yield shell
    finally:
        shell.tell("kill-server")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("top"), command=OF_WORDS)
    process.drop(1)
    with process.running("staged=delay:2"):
        yield process


@pytest.fixture
def screen(process: Process, tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path, process.socket) as shell:
        yield shell


def test_it_follows_a_swap_and_a_rejection_in_place(process: Process, screen: Terminal) -> None:
    screen.top()
    screen.shows("generation 1, step_1, answers", "q quits")
    process.drop(2)
    screen.shows("reloading", "attempt in progress: step_2", ">staging")
    text = screen.shows("generation 2, step_2, answers", "last attempt: step_2")
    assert text.count("WHEN") == 1
    process.drop(3, damage="nan")
    text = screen.shows("last attempt: step_3", "rejected", "nonfinite")
    assert "generation 2, step_2, answers" in text
    assert PROMPT not in text  # it has the whole screen to itself
    assert max(map(len, text.splitlines())) <= 80
    screen.press("q")
    text = screen.shows("ended: 0")
    assert "generation" not in text.replace("hotreload.cli top", "")


@pytest.mark.parametrize(("signal", "code"), [("INT", 130), ("TERM", 143)])
def test_the_terminal_is_given_back_however_it_ends(
    screen: Terminal, signal: str, code: int
) -> None:
    screen.top()
    screen.shows("q quits")
    if signal == "INT":
        screen.press("C-c")
    else:
        os.kill(screen.child(), SIGTERM)
    screen.shows(f"ended: {code}")
    flags = "#{cursor_flag}#{alternate_on}"
    assert screen.tell("display-message", "-p", "-t", "t", flags) == "10\n"
    screen.type("echo it is typed")
    assert "echo it is typed" in screen.shows("\nit is typed")


def test_it_is_put_aside_and_taken_up_again(screen: Terminal) -> None:
    screen.top()
    screen.shows("q quits")
    screen.press("C-z")
    screen.shows(PROMPT)
    screen.type("fg")
    screen.shows("q quits", "gate open")
    screen.press("q")
    screen.shows(PROMPT)


def test_it_fits_itself_to_another_size(screen: Terminal) -> None:
    screen.top()
    screen.shows("live since")
    screen.tell("resize-window", "-t", "t", "-x", "40", "-y", "10")
    text = screen.until(lambda text: "…" in text and "q quits" in text, "a narrow frame")
    assert len(text.splitlines()) <= 10
    assert text.startswith("generation ")
    screen.tell("resize-window", "-t", "t", "-x", "120", "-y", "30")
    screen.shows("live since")
    screen.press("q")


def test_colours_are_there_unless_they_are_unwanted(screen: Terminal) -> None:
    green = "\x1b[32mserving"
    screen.top()
    screen.shows("q quits")
    assert green in screen.screen("-e")
    screen.press("q")
    screen.shows("ended: 0")
    screen.top(before="NO_COLOR=1")
    screen.shows("q quits")
    assert green not in screen.screen("-e")
    screen.press("q")
    screen.shows("ended: 0")


def test_without_a_terminal_it_prints_one_frame_and_ends(process: Process) -> None:
    command = [sys.executable, "-m", "hotreload.cli", "top", f"--socket={process.socket}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "generation" in ran.stdout.splitlines()[0]
    assert "\x1b" not in ran.stdout
    assert "q quits" not in ran.stdout


def test_a_socket_where_nobody_accepts_is_told_and_can_be_left(tmp_path: Path) -> None:
    """As during a start under systemd, which holds the socket."""
    path = tmp_path / "nobody"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with terminal(tmp_path, path) as screen:
            screen.top()
            screen.shows("the daemon starts or hangs", "no answer on", "q quits")
            screen.press("q")
            screen.shows("ended: 0")


def test_it_outlives_a_restart_of_the_daemon(process: Process, screen: Terminal) -> None:
    """The last one: it restarts the daemon they share."""
    screen.top()
    screen.shows("serving", ", answers; ")
    assert process.stop() == os.EX_OK
    screen.shows("not reachable, trying again")
    process.start()
    screen.until(
        lambda text: "not reachable" not in text and text.startswith("generation"),
        "it serves again",
    )
    screen.press("q")
    screen.shows("ended: 0")
