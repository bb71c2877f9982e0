"""Mounts of this machine: reads what the kernel says is mounted where."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
