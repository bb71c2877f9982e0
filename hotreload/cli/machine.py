"""What this machine has and lets a user do: devices, mounts, memory. Reads /proc, /sys and /dev."""

import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEVICES = ("accel[0-9]*", "vfio/[0-9]*", "vfio/vfio")


def accelerators(dev: Path = Path("/dev")) -> list[Path]:
    """The nodes of accelerators; the one every VFIO user has does not make one alone."""
    found = [node for pattern in DEVICES for node in sorted(dev.glob(pattern))]
    return found if any(node.name != "vfio" for node in found) else []


@dataclass(frozen=True, slots=True)
class User:
    """Somebody whose rights are looked at, by number."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, path: Path, wanted: int) -> bool:
        """Whether the file's mode lets them (os.R_OK and so on), and each folder lets them in.

        Access lists and read-only mounts are not looked at.
        """
        if self.uid == 0:
            return path.exists()
        folders = (folder for folder in path.absolute().parents)
        try:
            return all(self._is_let(folder, os.X_OK) for folder in folders) and self._is_let(
                path, wanted
            )
        except OSError:
            return False

    def _is_let(self, path: Path, wanted: int) -> bool:
        found = path.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return stat.S_IMODE(found.st_mode) >> shift & wanted == wanted


def user_called(name: str | None) -> User | None:
    """The user of that name, or who we are; None when there is nobody of that name."""
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_name, entry.pw_uid, frozenset(groups))


def holders(node: Path) -> Iterator[str]:
    """Yield the processes that have a device open, as far as we may look."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = any(os.readlink(fd) == str(node) for fd in (process / "fd").iterdir())
            if opened:
                yield f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:  # it ended, or is somebody else's
            continue


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system a path lies on, such as ext4, nfs4 or fuse.gcsfuse."""
    real, best, kind = path.resolve(), Path("/"), "unknown"
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        if (real == point or point in real.parents) and len(point.parts) >= len(best.parts):
            best, kind = point, right.split()[0]
    return kind


def memory_available(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes a process may have before the machine swaps or kills."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
