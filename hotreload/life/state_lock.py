"""The state folder: one daemon a folder, and what is written goes to where this one's lock is.

Two daemons would clear each other's copies and forget each other's past. A folder that is moved
takes its lock along: who comes then finds another folder under its name, or none.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload import files
from hotreload.errors import ConfigError

log = logging.getLogger("hotreload.state")

LOCK = "lock"
LARGEST_LOCK = 65536


@dataclass(frozen=True, slots=True)
class Held:
    """A folder and the lock in it, both open."""

    folder: int
    lock: int

    @property
    def place(self) -> str:
        """The path of the folder now; the kernel adds a word when it was deleted."""
        return os.readlink(f"/proc/self/fd/{self.folder}")

    @property
    def is_deleted(self) -> bool:
        """True if nothing can be written there any more."""
        return self.place.endswith(" (deleted)")

    def close(self) -> None:
        """Let go of both."""
        os.close(self.folder)
        os.close(self.lock)


class StateFolder:
    """Belongs to one life of a daemon; `held` for as long as it serves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved: str | None = None
        """The reason why what is written lies elsewhere than under `path`, at the last look."""
        self._held: Held | None = None
        self._socket = Path()

    @contextmanager
    def held(self, socket: Path) -> Iterator[None]:
        """Hold the folder for life; ConfigError names the daemon that has it already.

        The kernel lets go of it at any death. A folder that cannot be locked is told, and used.
        """
        self._socket = socket
        try:
            self._held = _taken(self.path, socket)
        except BlockingIOError:
            raise ConfigError(
                f"[state] directory: {self.path} is in use by {named(user_of(self.path))}; stop "
                "that one, or set another [state] directory"
            ) from None
        except OSError as error:
            _complain(self.path, error)
        try:
            yield
        finally:
            if self._held is not None:
                self._held.close()
                self._held = None

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The folder to write to: what is held, wherever it lies; else what has its name."""
        if self._held is not None:
            yield self._held.folder
            return
        self.path.mkdir(parents=True, exist_ok=True)
        folder = _open(self.path)
        try:
            yield folder
        finally:
            os.close(folder)

    @property
    def is_in_place(self) -> bool:
        """True if another daemon that starts now would find the lock that is held."""
        if self._held is None:
            return True
        try:
            found = os.stat(self.path / LOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # it does not answer: what is written there will say so
            return True
        return os.path.samestat(found, os.fstat(self._held.lock))

    def follow(self) -> None:
        """Take what has the folder's name now, if nobody uses it; else stay, and say so in `moved`.

        No new one is made where the folder was only moved: it could not be moved back.
        """
        self.moved = None
        if self._held is None or self.is_in_place:
            return
        lies_at = f"what changes is written to {self._held.place}, where it was moved to"
        if not self._held.is_deleted and not self.path.exists():
            self.moved = f"{self.path} is gone; {lies_at}"
            return
        try:
            found = _taken(self.path, self._socket)
        except BlockingIOError:
            user = named(user_of(self.path))
            self.moved = f"{self.path} is another folder now, and {user} uses it; {lies_at}"
        except OSError as error:
            self.moved = f"{self.path} is another folder now, and cannot be used: {error}"
        else:
            log.warning("state.taken_anew", extra={"path": str(self.path), "was": self._held.place})
            self._held.close()
            self._held = found


def _taken(path: Path, socket: Path) -> Held:
    """Make and lock the folder of this name; BlockingIOError when another daemon has it."""
    with ExitStack() as opened:
        path.mkdir(parents=True, exist_ok=True)
        folder = _open(path)
        opened.callback(os.close, folder)
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=folder)
        opened.callback(os.close, lock)
        try:
            files.lock(lock)
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid(), "socket": str(socket)}).encode(), 0)
        except BlockingIOError:
            raise
        except OSError as error:  # a file system without locks, or a full one
            _complain(path, error)
        opened.pop_all()
    return Held(folder, lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _complain(directory: Path, error: OSError) -> None:
    todo = "see that no other daemon uses this folder"
    fields = {"path": str(directory / LOCK), "error": str(error), "todo": todo}
    log.warning("state.not_locked", extra=fields)


def user_of(directory: Path) -> dict[str, Any]:
    """Read what the last one to hold the folder wrote into its lock: `pid` and `socket`."""
    with suppress(OSError, ValueError), (directory / LOCK).open("rb") as file:
        told = json.loads(file.read(LARGEST_LOCK))
        return told if isinstance(told, dict) else {}
    return {}


def named(user: dict[str, Any]) -> str:
    """The daemon that wrote this, in words."""
    if not user:
        return "another hotreload"
    return f"another hotreload (pid {user.get('pid')}, socket {user.get('socket')})"
