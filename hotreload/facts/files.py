"""Files: writes that a power cut leaves whole, locks that end with their process, and mounts."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


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


# --- mounts: what the kernel says is mounted where ------------------------------------------------

MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A place where something is mounted, and the type of its file system, such as ext4 or nfs4."""

    point: Path
    kind: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind})"


def mounts(table: str) -> Iterator[Mount]:
    """All that the text of a mountinfo names; of two on one place the later covers the other."""
    for line in filter(None, table.split("\n")):  # a path may hold other white space
        mount, _, source = line.partition(" - ")
        yield Mount(Path(unescape(mount.split(" ")[4])), source.split(" ")[0])


def mount_of(path: Path, table: str | None = None) -> Mount:
    """The mount that the path, links resolved, lies on."""
    if table is None:
        table = MOUNTINFO.read_text(errors="replace")
    real, best = Path(os.path.realpath(path)), Mount(Path(), "unknown")
    for mount in mounts(table):
        if real.is_relative_to(mount.point) and len(mount.point.parts) >= len(best.point.parts):
            best = mount
    return best


def unescape(text: str) -> str:
    """A path as it is; this table, and fstab, spell spaces and the like by their numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
