"""Facts about this machine and what it lets a user do: devices, sockets, limits, units.

Reads /proc, /sys and /dev, and changes nothing.
"""

import os
import pwd
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.cli.ops.unit_words import credential_name

DEVICE_NODES = (
    "accel[0-9]*",
    "vfio/[0-9]*",
    "vfio/vfio",
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-uvm",
)
BESIDE_A_DEVICE = {"vfio", "nvidiactl", "nvidia-uvm"}
"""The names of nodes that are used beside each device of their kind."""
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")
GOOGLE = "0x1ae0"
"""The PCI vendor number of Google, for TPUs."""
CREDENTIAL = re.compile(r"^(?:Load|Set)Credential(?:Encrypted)?=([^:\n]+)", re.MULTILINE)
NO_USER = 65534
SERVICE_USER = "hotreload"
"""The user of the service, unless `install-unit --user` names another."""


def accelerators(dev: Path = Path("/dev"), groups: Path = IOMMU_GROUPS) -> list[Path]:
    """Find the nodes of accelerators; vfio/vfio, which every VFIO user has, never comes alone.

    A VFIO group of another vendor (a disk that is passed to a guest) is not an accelerator.
    """
    found = [node for pattern in DEVICE_NODES for node in sorted(dev.glob(pattern))]
    found = [node for node in found if GOOGLE in (_vendors(node, groups) or {GOOGLE})]
    return found if any(node.name not in BESIDE_A_DEVICE for node in found) else []


def unknown_groups(nodes: Sequence[Path], groups: Path = IOMMU_GROUPS) -> list[Path]:
    """Return the VFIO groups among the nodes whose vendors cannot be found out."""
    numbered = [node for node in nodes if node.parent.name == "vfio" and node.name.isdigit()]
    return [node for node in numbered if not _vendors(node, groups)]


def _vendors(node: Path, groups: Path) -> set[str]:
    """Return the vendors of the devices of a VFIO group; empty when they cannot be found out.

    Bridges, which may share a group with the devices behind them, do not count.
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
    """A user whose rights are looked at, by the numbers of user and groups."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, path: Path, wanted: int) -> bool:
        """True if the file's mode lets them (os.R_OK and so on), and each folder lets them in.

        Access lists and read-only mounts are not looked at.
        """
        return self.closed_at(path, wanted) is None

    def closed_at(self, path: Path, wanted: int) -> Path | None:
        """Return the first folder on the way that does not let them in, or the path itself."""
        for each in (*reversed(path.absolute().parents), path):
            try:
                if not self._is_let(each, wanted if each == path else os.X_OK):
                    return each
            except OSError:
                return each
        return None

    def _is_let(self, path: Path, wanted: int) -> bool:
        found = path.stat()
        if self.uid == 0:
            return True
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return stat.S_IMODE(found.st_mode) >> shift & wanted == wanted


def stranger(name: str) -> User:
    """Return a user that does not exist yet, and may do what everybody may."""
    return User(name, NO_USER, frozenset())


def user_called(name: str | None) -> User | None:
    """Return the user of that name, or our own without a name; None when no user has that name."""
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_name, entry.pw_uid, frozenset(groups))


def inotify_instances(uid: int, proc: Path = Path("/proc")) -> int:
    """Count the inotify instances that a user has, as far as we may look."""
    count = 0
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == uid:
                links = (os.readlink(fd) for fd in (process / "fd").iterdir())
                count += sum(link == "anon_inode:inotify" for link in links)
    return count


def most_files(process: int | str) -> int | None:
    """Return how many files a process may open once it has raised its limit; None for no limit."""
    for line in Path(f"/proc/{process}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            hard = line.split()[4]
            return int(hard) if hard.isdigit() else None
    return None


def credentials(folders: Sequence[Path], unit: str = "hotreload") -> set[str]:
    """Return the names of the credentials that the service's unit and drop-ins pass on."""
    found = (name for text in _unit_texts(folders, unit) for name in CREDENTIAL.findall(text))
    return {credential_name(name) for name in found}


def unit_limit(name: str, folders: Sequence[Path], unit: str = "hotreload") -> int | None:
    """Return a limit of the service's unit or its drop-ins; None without such a line."""
    found = [
        re.findall(rf"(?m)^{name}=(\d+)([KMGT]?)$", text) for text in _unit_texts(folders, unit)
    ]
    last = next((limits[-1] for limits in found if limits), None)
    return None if last is None else int(last[0]) * 1024 ** " KMGT".index(last[1] or " ")


def _unit_texts(folders: Sequence[Path], unit: str) -> list[str]:
    """Read the drop-ins and the unit; drop-ins come first, because they override it."""
    files = [f for folder in folders for f in folder.glob(f"{unit}.service.d/*.conf")]
    name, is_one_of_several, _ = unit.partition("@")
    files += [folder / f"{name}{is_one_of_several}.service" for folder in folders]
    return [file.read_text(errors="replace") for file in files if file.is_file()]
