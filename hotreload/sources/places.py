"""What one look at a tree shows: the folders that may hold a checkpoint, finished or begun.

Names, sizes and times only; what is in the files is for others to say.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_WEIGHTS = (".safetensors", ".safetensors.index.json")
_UNFINISHED = re.compile(r"\.|tmp-|.*\.(tmp|part|partial|incomplete)$")


class Entry(NamedTuple):
    """What lies in a folder under one name; equal entries mean that nobody has touched it."""

    name: str
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime: int = 0
    ctime: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that may hold a checkpoint, as one look at the tree shows it."""

    path: Path
    folder: Path  # links resolved: where `latest` leads now
    entries: tuple[Entry, ...]

    @property
    def label(self) -> str:
        """What people call it."""
        return self.folder.name

    @property
    def weights(self) -> tuple[Entry, ...]:
        """Its weight files; the same ones again after a remount, which may change the device."""
        return tuple(entry._replace(device=0) for entry in self.entries if _is_weights(entry.name))

    @property
    def step(self) -> int:
        """The last number in its name."""
        numbers = re.findall(r"[0-9]+", self.label)
        return int(numbers[-1]) if numbers else -1

    @property
    def time(self) -> int:
        """When it was last written to, by its files."""
        # A copy may carry any mtime along, one in the future too; ctime is this machine's own.
        return max((min(entry.mtime, entry.ctime) for entry in self.entries), default=0)

    def changed_at(self, name: str) -> int | None:
        """When this entry was last touched; None when there is no such entry."""
        return next((entry.ctime for entry in self.entries if entry.name == name), None)

    def last_change(self, but: str | None = None) -> int:
        """When any entry but this one was last touched."""
        return max((entry.ctime for entry in self.entries if entry.name != but), default=0)


def places(root: Path, depth: int) -> Iterator[Place]:
    """Every place from the root down; OSError when the root itself cannot be listed."""
    return _places(root, root, depth, root)


def _places(root: Path, path: Path, depth: int, folder: Path) -> Iterator[Place]:
    """Nothing is searched inside a checkpoint (but the root may be one and hold others), behind
    a link (they may go round), or in what is named as unfinished.
    """
    try:
        with os.scandir(path) as listing:
            found = list(listing)
    except OSError:
        if path == root:
            raise
        yield Place(path, folder, ())
        return
    place = Place(path, folder, tuple(sorted(map(_entry, found))))
    if place.weights or place.changed_at("config.json") is not None:
        yield place
        if path != root:
            return
    for name, link in _folders(found) if depth > 0 else ():
        below = path / name
        yield from _places(root, below, 0 if link else depth - 1, link or below)


def _folders(found: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, Path | None]]:
    """The folders among them, and where those that are links lead to."""
    for entry in found:
        with suppress(OSError):
            if entry.is_dir() and not _UNFINISHED.match(entry.name):
                link = Path(os.path.realpath(entry.path)) if entry.is_symlink() else None
                yield entry.name, link


def _entry(found: os.DirEntry[str]) -> Entry:
    try:
        status = found.stat()
    except OSError:
        return Entry(found.name)
    times = status.st_mtime_ns, status.st_ctime_ns
    return Entry(found.name, status.st_dev, status.st_ino, status.st_size, *times)


def _is_weights(name: str) -> bool:
    return name.endswith(_WEIGHTS) and not _UNFINISHED.match(name)
