"""Finds the daemon that a verb talks to, and waits while it boots.

It is named by options, the environment, or the usual settings.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_timeout
from hotreload.client.places import no_address
from hotreload.client.synchronous import Client
from hotreload.errors import (
    ConfigError,
    EngineLost,
    HotReloadError,
    Misused,
    NotReady,
    TimedOut,
    Unreachable,
)
from hotreload.facts.names import DEFAULT_CONFIG, DEFAULT_SOCKET
from hotreload.picture.words import Fields, boot_text, plain


@dataclass(frozen=True, slots=True)
class NamedSocket:
    """A socket's path, and the option, variable or file that named it."""

    path: Path
    origin: str


def find_daemon(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Client:
    """Return the daemon at the address that is named, else the one on the socket.

    Options come first: a variable that a shell exports may name another daemon.
    """
    is_here = args.socket is not None or args.config is not None
    url, origin = args.url, "--url"
    if url is None and not is_here:
        url, origin = environ.get("HOTRELOAD_URL") or None, "$HOTRELOAD_URL"
    if url is None:
        if args.key_file is not None or args.ca_file is not None:
            raise Misused("--key-file and --ca-file go with --url; a socket needs no key")
        named = find_socket(args, environ)
        return Client(named.path, named_by=named.origin)
    if "://" not in url:
        raise no_address(url, origin)
    return Client(
        url,
        key_file=args.key_file or environ.get("HOTRELOAD_KEY_FILE") or None,
        ca_file=args.ca_file or environ.get("HOTRELOAD_CA_FILE") or None,
        named_by=origin,
    )


def find_socket(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> NamedSocket:
    """Return the daemon's socket: by the options, then the environment, then the usual settings."""
    if args.socket is not None:
        return NamedSocket(Path(args.socket), "--socket")
    named = _named_in_environ(environ)
    if args.config is not None:
        return _in_settings(Path(args.config)) or named or _by_default(args.config)
    if environ.get("HOTRELOAD_SOCKET"):
        return NamedSocket(Path(environ["HOTRELOAD_SOCKET"]), "$HOTRELOAD_SOCKET")
    file = environ.get("HOTRELOAD_CONFIG")
    if file is None and os.access(DEFAULT_CONFIG, os.R_OK):
        file = str(DEFAULT_CONFIG)
    in_file = _in_settings(Path(file)) if file else None  # raises if it cannot be read
    return named or in_file or _by_default(file)


def _by_default(file: str | None) -> NamedSocket:
    return NamedSocket(DEFAULT_SOCKET, f"the default; {file} names none" if file else "the default")


def _in_settings(file: Path) -> NamedSocket | None:
    from hotreload.settings.given import read_toml  # imported only if there is a file

    server = read_toml(file).get("server", {})
    path = server.get("socket") if isinstance(server, dict) else None
    if path is None:
        return None
    if not isinstance(path, str):
        raise ConfigError(f"{file}: [server] socket must be a path")
    return NamedSocket(
        file.absolute().parent / Path(path).expanduser(), f"[server] socket in {file}"
    )


def _named_in_environ(environ: Mapping[str, str]) -> NamedSocket | None:
    name = "HOTRELOAD__SERVER__SOCKET"
    return NamedSocket(Path(environ[name]), f"${name}") if environ.get(name) else None


# --- a daemon that boots --------------------------------------------------------------------------

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
