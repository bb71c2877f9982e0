"""One daemon a state folder: two would clear each other's copies and forget each other's past."""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError

log = logging.getLogger("hotreload.state")

NAME = "lock"
LARGEST = 65536


@contextmanager
def sole_user(directory: Path, socket: Path) -> Iterator[None]:
    """Hold the state folder for life; ConfigError names the daemon that has it already.

    The kernel lets go of it at any death. A folder that cannot be locked is told, and used.
    """
    try:
        lock = _open(directory)
    except OSError as error:
        _complain(directory, error)
        yield
        return
    try:
        _take(lock, directory, socket)
        yield
    finally:
        os.close(lock)


def _open(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _take(lock: int, directory: Path, socket: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "socket": str(socket)}).encode(), 0)
    except BlockingIOError:
        raise ConfigError(
            f"[state] directory: {directory} is in use by {named(user_of(directory))}; stop that "
            "one, or set another [state] directory"
        ) from None
    except OSError as error:  # a file system without locks, or a full one
        _complain(directory, error)


def _complain(directory: Path, error: OSError) -> None:
    todo = "see that no other daemon uses this folder"
    fields = {"path": str(directory / NAME), "error": str(error), "todo": todo}
    log.warning("state.not_locked", extra=fields)


def user_of(directory: Path) -> dict[str, Any]:
    """What the last one to hold the folder wrote into its lock: `pid` and `socket`."""
    with suppress(OSError, ValueError), (directory / NAME).open("rb") as file:
        told = json.loads(file.read(LARGEST))
        return told if isinstance(told, dict) else {}
    return {}


def named(user: dict[str, Any]) -> str:
    """The daemon that wrote this, in words."""
    if not user:
        return "another hotreload"
    return f"another hotreload (pid {user.get('pid')}, socket {user.get('socket')})"
