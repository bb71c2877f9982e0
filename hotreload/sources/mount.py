"""Where a path is mounted, by what the kernel says."""

import os
import re
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """The mount that a path lies on, and the type of its file system."""

    point: Path
    kind: str

    def __str__(self) -> str:
        return f"{self.point} ({self.kind})"


def mount_of(path: Path, mountinfo: str | None = None) -> Mount:
    """The mount that the path, links resolved, lies on."""
    if mountinfo is None:
        mountinfo = MOUNTINFO.read_text(errors="replace")
    real, best = Path(os.path.realpath(path)), Mount(Path(), "")
    for line in filter(None, mountinfo.split("\n")):  # a path may hold other white space
        mount, _, source = line.partition(" - ")
        escaped = mount.split(" ")[4]
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), escaped))
        if real.is_relative_to(point) and len(point.parts) >= len(best.point.parts):
            best = Mount(point, source.split(" ")[0])  # a later mount covers
    return best
