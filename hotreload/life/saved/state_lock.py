"""The state folder: one daemon for each folder, which writes to the folder whose lock it holds.

Two daemons would clear each other's copies and lose each other's history. A folder that is moved
takes its lock along: the next daemon finds another folder under its name, or none. The lock also
records the stage of its daemon, so that the next one knows if it died.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError
from hotreload.facts import files

log = logging.getLogger("hotreload.state")

LOCK = "lock"
LARGEST_LOCK = 65536
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LifeStage(StrEnum):
    """The stages of a life, as far as the next one must know."""

    STARTING = "starting"
    """The daemon does not answer yet, or compiles for larger batches."""
    SERVING = "serving"
    OVER = "over"
    """The daemon stops, or was asked to: no later death is a crash."""


@dataclass(frozen=True, slots=True)
class DeadLife:
    """A life that did not end in order: by a signal, or with its machine."""

    pid: int
    stage: LifeStage
    seen: float
    """The time of its last sign of life."""
    with_machine: bool
    """True if the machine was started again since."""


@dataclass(frozen=True, slots=True)
class LockedFolder:
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
        """Close both."""
        os.close(self.folder)
        os.close(self.lock)


class StateFolder:
    """The state folder of one life of a daemon; `hold` locks it as long as it serves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved: str | None = None
        """The reason why files lie elsewhere than under `path`, at the last look."""
        self.died: DeadLife | None = None
        """The life before this one, if it did not end in order."""
        self._held: LockedFolder | None = None
        self._socket = Path()
        self._stage = LifeStage.STARTING

    @contextmanager
    def hold(self, socket: Path) -> Iterator[None]:
        """Hold the folder for life; ConfigError names the daemon that has it already.

        The kernel unlocks it at any death. A folder that cannot be locked is reported, and used.
        """
        self._socket = socket
        died = _died_in(self.path)
        try:
            self._held = _lock_folder(self.path, self._lock_text)
            self.died = died
        except BlockingIOError:
            raise ConfigError(
                f"[state] directory: {self.path} is in use by {describe_user(user_of(self.path))}; "
                "stop that one, or set another [state] directory"
            ) from None
        except OSError as error:
            _complain(self.path, error)
        try:
            yield
        finally:
            if self._held is not None:
                self.note(LifeStage.OVER)
                self._held.close()
                self._held = None

    @property
    def _lock_text(self) -> bytes:
        """The text of the lock file, of one size, so that a full disk has room for each stage."""
        user = {"pid": os.getpid(), "socket": str(self._socket)}
        return json.dumps({**user, "stage": self._stage, "boot": _boot()}).encode().ljust(512)

    def note(self, stage: LifeStage) -> None:
        """Record the stage of this life for the next one; OVER is never left."""
        if self._stage is LifeStage.OVER:
            return
        self._stage = stage
        self._write(lambda lock: _write_text(lock, self._lock_text))

    def beat(self) -> None:
        """Touch the lock: the next life reports the time of the last touch."""
        self._write(os.utime)

    def _write(self, write: Callable[[int], None]) -> None:
        if self._held is not None:
            with suppress(OSError):  # then a crash goes unnoticed
                write(self._held.lock)

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Open the folder to write to: the held one, wherever it is; else the one of this path."""
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
        """Lock the folder that has this path now, if no daemon uses it; else stay, and set `moved`.

        No new folder is made in the place of one that was moved: it could not be moved back.
        """
        self.moved = None
        if self._held is None or self.is_in_place:
            return
        lies_at = f"what changes is written to {self._held.place}, where it was moved to"
        if not self._held.is_deleted and not self.path.exists():
            self.moved = f"{self.path} is gone; {lies_at}"
            return
        try:
            found = _lock_folder(self.path, self._lock_text)
        except BlockingIOError:
            user = describe_user(user_of(self.path))
            self.moved = f"{self.path} is another folder now, and {user} uses it; {lies_at}"
        except OSError as error:
            self.moved = f"{self.path} is another folder now, and cannot be used: {error}"
        else:
            log.warning("state.taken_anew", extra={"path": str(self.path), "was": self._held.place})
            self._held.close()
            self._held = found


def _lock_folder(path: Path, text: bytes) -> LockedFolder:
    """Make and lock the folder of this name; BlockingIOError when another daemon has it."""
    with ExitStack() as opened:
        path.mkdir(parents=True, exist_ok=True)
        folder = _open(path)
        opened.callback(os.close, folder)
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=folder)
        opened.callback(os.close, lock)
        try:
            files.lock(lock)
            _write_text(lock, text)
        except BlockingIOError:
            raise
        except OSError as error:  # a file system without locks, or a full one
            _complain(path, error)
        opened.pop_all()
    return LockedFolder(folder, lock)


def _write_text(lock: int, text: bytes) -> None:
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))


def _boot() -> str:
    """A name for the time since the machine was started."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def _died_in(directory: Path) -> DeadLife | None:
    """Read of the life that held this folder last if it did not end in order."""
    user = user_of(directory)
    with suppress(OSError, LookupError, TypeError, ValueError):  # or it is of an older version
        stage, pid = LifeStage(user["stage"]), int(user["pid"])
        if stage is not LifeStage.OVER:
            seen = (directory / LOCK).stat().st_mtime
            return DeadLife(pid, stage, seen, with_machine=user.get("boot") != _boot())
    return None


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _complain(directory: Path, error: OSError) -> None:
    todo = "see that no other daemon uses this folder"
    fields = {"path": str(directory / LOCK), "error": str(error), "todo": todo}
    log.warning("state.not_locked", extra=fields)


def user_of(directory: Path) -> dict[str, Any]:
    """Read what the last one to hold the folder wrote into its lock: `pid` and `socket`."""
    with suppress(OSError, ValueError), (directory / LOCK).open("rb") as file:
        user = json.loads(file.read(LARGEST_LOCK))
        return user if isinstance(user, dict) else {}
    return {}


def describe_user(user: dict[str, Any]) -> str:
    """The daemon that wrote this, in words."""
    if not user:
        return "another hotreload"
    return f"another hotreload (pid {user.get('pid')}, socket {user.get('socket')})"
