"""What this machine has and lets a user do: devices, sockets, mounts, memory.

Reads /proc, /sys and /dev, and changes nothing.
"""

import os
import pwd
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DEVICES = ("accel[0-9]*", "vfio/[0-9]*", "vfio/vfio")
GROUPS = Path("/sys/kernel/iommu_groups")
GOOGLE = "0x1ae0"
"""Who makes TPUs, as PCI knows them."""
CREDENTIAL = re.compile(r"^(?:Load|Set)Credential(?:Encrypted)?=([^:\s]+)", re.MULTILINE)
NOBODY = 65534
ACCEPTS = 0x10000
"""The flag of a socket that listens, as /proc/net/unix shows it."""


def accelerators(dev: Path = Path("/dev"), groups: Path = GROUPS) -> list[Path]:
    """The nodes of accelerators; the one every VFIO user has does not make one alone.

    A VFIO group of another vendor's (a disk that is passed to a guest) is none.
    """
    found = [node for pattern in DEVICES for node in sorted(dev.glob(pattern))]
    found = [node for node in found if GOOGLE in (_vendors(node, groups) or {GOOGLE})]
    return found if any(node.name != "vfio" for node in found) else []


def unknown_groups(nodes: Sequence[Path], groups: Path = GROUPS) -> list[Path]:
    """The VFIO groups among the nodes of which nobody knows whose devices they hold."""
    numbered = [node for node in nodes if node.parent.name == "vfio" and node.name.isdigit()]
    return [node for node in numbered if not _vendors(node, groups)]


def _vendors(node: Path, groups: Path) -> set[str]:
    """Who made the devices of a VFIO group; nobody where that cannot be found out.

    Bridges, which may be in a group with what is behind them, do not count.
    """
    if node.parent.name != "vfio" or not node.name.isdigit():
        return set()
    found = set()
    for device in (groups / node.name / "devices").glob("*"):
        with suppress(OSError):
            if not (device / "class").read_text().startswith("0x0604"):
                found.add((device / "vendor").read_text().strip())
    return found


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


def stranger(name: str) -> User:
    """A user who is not made yet: may what everybody may."""
    return User(name, NOBODY, frozenset())


def user_called(name: str | None) -> User | None:
    """The user of that name, or who we are; None when there is nobody of that name."""
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_name, entry.pw_uid, frozenset(groups))


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def holders(opened: object) -> Iterator[Process]:
    """Yield the processes that have a file or `socket:[inode]` open, as far as we may look."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is somebody else's
            if any(os.readlink(fd) == str(opened) for fd in (process / "fd").iterdir()):
                yield Process(int(process.name), (process / "comm").read_text().strip())


def listening_on(path: Path, table: Path = Path("/proc/net/unix")) -> str | None:
    """What listens under this name, as `socket:[inode]`; None when nothing does.

    Nobody connects: under systemd that would start the daemon.
    """
    if not os.path.lexists(path):
        return None
    wanted = os.path.realpath(path)
    for line in table.read_text(errors="replace").splitlines()[1:]:
        *_, flags, _, _, inode, name = [*line.split(maxsplit=7), ""][:8]
        is_it = name.endswith(path.name) and os.path.realpath(name) == wanted
        if is_it and int(flags, 16) & ACCEPTS:
            return f"socket:[{inode}]"
    return None


def inotify_instances(uid: int, proc: Path = Path("/proc")) -> int:
    """How many a user has, as far as we may look."""
    count = 0
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == uid:
                links = (os.readlink(fd) for fd in (process / "fd").iterdir())
                count += sum(link == "anon_inode:inotify" for link in links)
    return count


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system a path lies on, such as ext4, nfs4 or fuse.gcsfuse."""
    real, best, kind = path.resolve(), Path("/"), "unknown"
    for line in mounts.read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        if (real == point or point in real.parents) and len(point.parts) >= len(best.parts):
            best, kind = point, right.split()[0]
    return kind


def credentials(folders: Sequence[Path]) -> set[str]:
    """The names of the credentials that the service's unit and drop-ins pass on."""
    files = [f for folder in folders for f in folder.glob("hotreload.service.d/*.conf")]
    files += [folder / "hotreload.service" for folder in folders]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    return {name for text in texts for name in CREDENTIAL.findall(text)}
