"""`hotreload top`: shows the daemon's status, redrawn in place until the user quits."""

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hotreload.cli.args import add_client_verb, seconds
from hotreload.cli.client.show import now
from hotreload.cli.client.top_frame import frame, may_colour, write_line
from hotreload.cli.client.which_daemon import find_daemon
from hotreload.client.synchronous import STATUS_SECONDS
from hotreload.errors import HotReloadError, TimedOut
from hotreload.picture.words import Fields

ENTER = "\033[?1049h\033[?25l"
LEAVE = "\033[?25h\033[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\033[H", "\033[K", "\033[J"
QUIT = b"qQ\x04"
"""The keys that quit: q, and the end of input."""
GLANCE_SECONDS = 1.0
"""The longest time of one look; nothing is redrawn meanwhile, and `q` waits."""
AWAY = "not reachable, trying again"
SILENT = "the daemon starts or hangs; trying again"
"""Shown after a timeout: under systemd nothing answers on the socket until the daemon serves."""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_client_verb(verbs, "top", run, as_json=False)
    parser.add_argument(
        "--interval",
        type=partial(seconds, least=0.05, most=3600),
        default=0.5,
        metavar="S",
        help="how many seconds lie between two looks (0.5)",
    )


def run(args: argparse.Namespace) -> int:
    """Show frames until the user quits; one frame without a terminal."""
    watch = TopScreen(find_daemon(args))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        watch.look(STATUS_SECONDS)
        shown = watch.lines(colour=False)[:-1]  # without the line of keys
        print("\n".join(line.rstrip() for line in shown).rstrip())
        return 0
    with _terminal() as terminal:
        while not terminal.is_over:
            _draw(watch)
            terminal.wait(args.interval)
    return 0


class TopScreen:
    """The daemon's last status and history, and the fault of a look that failed."""

    def __init__(self, daemon: Any) -> None:
        self._daemon = daemon
        self._status: Fields | None = None
        self._last_attempt: Fields | None = None
        self._attempts: list[Fields] = []
        self._fault: tuple[str, str] | None = None

    def look(self, within: float) -> None:
        """Get the status again, and after an attempt the history."""
        status = self._daemon.get("/status", within)
        if status["last_attempt"] != self._last_attempt:
            self._attempts = self._daemon.get("/history", within)["attempts"]
        self._last_attempt = status["last_attempt"]
        self._status, self._fault = status, None

    def look_again(self) -> None:
        """Get the status again, and keep the fault if the daemon does not answer."""
        try:
            self.look(GLANCE_SECONDS)
        except HotReloadError as fault:
            is_silent = isinstance(fault, TimedOut)
            self._fault = (SILENT if is_silent else AWAY, str(fault).partition("\n")[0])

    def lines(self, *, colour: bool) -> list[str]:
        """Return the frame's lines, as many as the terminal has."""
        width, height = shutil.get_terminal_size((80, 24))
        shown = frame(
            self._status,
            self._attempts,
            width=width,
            height=height,
            now=now(),
            fault=self._fault,
        )
        return [write_line(line, colour) for line in shown]


def _draw(watch: TopScreen) -> None:
    watch.look_again()
    lines = watch.lines(colour=may_colour())
    body = "\r\n".join(line + REST_OF_LINE for line in lines)
    _write(HOME + body + REST_OF_SCREEN)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Terminal:
    """The terminal's keys and the process's signals, waited for together."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self.is_over = False

    def wait(self, seconds: float) -> None:
        """Wait this many seconds; end at once on a quit key or a change of the window's size."""
        until = time.monotonic() + seconds
        while not self.is_over and (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([sys.stdin, self._wake], [], [], left)
            if sys.stdin in ready:
                typed = os.read(sys.stdin.fileno(), 64)
                self.is_over = not typed or any(key in typed for key in QUIT)
            if self._wake in ready:
                os.read(self._wake, 64)
                return


@contextmanager
def _terminal() -> Iterator[_Terminal]:
    """Hold the terminal in raw mode; restore it at the end, after errors and signals too."""
    before = termios.tcgetattr(sys.stdin)

    def enter() -> None:
        tty.setcbreak(sys.stdin)
        _write(ENTER)

    def leave() -> None:
        _write(LEAVE)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def suspend(*_: object) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    with _wake_on_signals() as wake:
        signal.signal(signal.SIGTSTP, suspend)
        signal.signal(signal.SIGTERM, _end)
        enter()
        try:
            yield _Terminal(wake)
        except _Terminated:
            leave()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            leave()


class _Terminated(BaseException):
    """SIGTERM came; the terminal is restored before the process ends."""


def _end(*_: object) -> None:
    raise _Terminated


@contextmanager
def _wake_on_signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable when a signal comes, as on a change of size."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.set_wakeup_fd(writing)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
