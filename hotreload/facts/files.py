"""Writes that a power cut leaves whole or undone, locks that end with their process, our files."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flush(what: Path | int) -> None:
    """Have a file's bytes, or a folder's names, on the disk; `what` is a path or is open."""
    if isinstance(what, int):
        os.fsync(what)
        return
    opened = os.open(what, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_in(folder: int, name: str, data: bytes) -> None:
    """Write a file into an open folder; its bytes are on the disk when it returns."""
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(name, how, 0o666, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        flush(file.fileno())


def rename_in(folder: int, old: str, new: str) -> None:
    """Give a file in an open folder another name, in the place of what has that."""
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in the place of what has its name."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fresh = f".{path.name}.new"
        write_in(folder, fresh, data)
        rename_in(folder, fresh, path.name)
        flush(folder)
    finally:
        os.close(folder)


def put_folder(fresh: Path, place: Path) -> None:
    """Give a whole folder its name, in the place of the one that has it, in this order on disk."""
    for file in (*fresh.iterdir(), fresh):
        flush(file)
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
    flush(place.parent)


def lock(opened: int, *, wait: bool = False) -> None:
    """Lock an open file until it is closed; BlockingIOError if locked elsewhere and not `wait`."""
    fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def hold_lock(path: Path, how: int = os.O_RDONLY) -> Iterator[None]:
    """Open it and hold its lock until the end of the block; BlockingIOError if another has it."""
    opened = os.open(path, how | os.O_CLOEXEC, 0o644)
    try:
        lock(opened)
        yield
    finally:
        os.close(opened)


def find_shipped(folder: str) -> Path:
    """Return a shipped folder: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder
