"""Waits for a daemon that boots, and prints the step of its start to stderr."""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hotreload.cli.args import add_timeout
from hotreload.errors import EngineLost, HotReloadError, NotReady, TimedOut, Unreachable
from hotreload.picture.words import Fields, boot_text, plain

ASK_AGAIN_SECONDS = 0.25
ONE_LOOK_SECONDS = 2.0
"""The longest wait for one look: a daemon whose socket systemd holds may not answer yet."""
READY = "ready"
WAIT_WORDS = "how long to wait while it boots (90, 30s, 5m); then exit 6 (as long as need be)"


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the options for waiting to a verb that looks."""
    parser.add_argument(
        "--wait",
        nargs="?",
        const=READY,
        choices=[READY],
        help="wait until requests are answered, and say on stderr what is awaited",
    )
    add_timeout(parser, WAIT_WORDS)


def until_ready(daemon: Any, within: float | None) -> Fields:
    """Wait until the daemon answers requests, and return its status.

    After `within` seconds NotReady names the step of the start. Unreachable if no daemon answers;
    EngineLost if this daemon will answer no request any more.
    """
    until = None if within is None else time.monotonic() + within
    with _open_line() as print_line:
        while True:
            status, fault = _look(daemon, until)
            if status is not None and not status["reasons"]:
                return status
            if status is not None and status["state"] == "lost":  # waiting does not help
                words = f"no request is answered: {_reasons(status)}"
                raise EngineLost(f"{words}; `hotreload explain EngineLost` says more")
            if until is not None and time.monotonic() >= until:
                raise fault or NotReady(
                    f"after {within:g} s it is not ready: {describe_work(status)}"
                )
            print_line(str(fault).partition("\n")[0] if fault else describe_work(status))
            time.sleep(ASK_AGAIN_SECONDS)


def check_ready(daemon: Any) -> None:
    """NotReady if the daemon boots; if it is lost or stops, its answer will say so."""
    status = daemon.get("/status")
    if status["state"] == "booting":
        raise NotReady(describe_work(status))


def describe_work(status: Fields | None) -> str:
    """Return in words what a daemon that answers no requests is doing."""
    if status is None:
        return "the daemon starts or hangs"
    return f"booting: {boot_text(status['boot'])}" if status.get("boot") else _reasons(status)


def _reasons(status: Fields) -> str:
    return plain("; ".join(status["reasons"]))


def _look(daemon: Any, until: float | None) -> tuple[Fields | None, HotReloadError | None]:
    """Return the status, or the reason why none came: a daemon that starts may not answer yet."""
    left = ONE_LOOK_SECONDS if until is None else max(0.01, until - time.monotonic())
    try:
        return daemon.get("/status", min(left, ONE_LOOK_SECONDS)), None
    except TimedOut:
        return None, None
    except Unreachable as away:
        if not away.may_come:
            raise
        return None, away


@contextmanager
def _open_line() -> Iterator[Any]:
    """Yield a function that prints a line: on a terminal over the last line, else only if new."""
    is_seen, last = sys.stderr.isatty(), ""

    def print_line(words: str) -> None:
        nonlocal last
        step = words.partition(", for ")[0]
        if is_seen:
            columns = shutil.get_terminal_size((80, 24)).columns - 1
            print(f"\r\033[K{words[:columns]}", end="", file=sys.stderr, flush=True)
        elif step != last:
            print(f"hotreload: waiting: {step}", file=sys.stderr, flush=True)
        last = step

    try:
        yield print_line
    finally:
        if is_seen and last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
