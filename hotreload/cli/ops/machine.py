"""Reads facts of this machine, and a user's rights on it: devices, sockets, limits, units.

It reads /proc, /sys and /dev, and changes nothing.
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
"""The nodes that go with each device of their kind, and are no device themselves."""
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")
GOOGLE = "0x1ae0"
"""The PCI vendor number of Google, for TPUs."""
CREDENTIAL = re.compile(r"^(?:Load|Set)Credential(?:Encrypted)?=([^:\n]+)", re.MULTILINE)
NO_USER = 65534
SERVICE_USER = "hotreload"
"""The user of the service, unless `install-unit --user` names another."""


def accelerators(dev: Path = Path("/dev"), groups: Path = IOMMU_GROUPS) -> list[Path]:
    """Return the nodes of accelerators; vfio/vfio, which every VFIO user has, never comes alone.

    A VFIO group of another vendor (a disk that is passed to a guest) is no accelerator.
    """
    found = [node for pattern in DEVICE_NODES for node in sorted(dev.glob(pattern))]
    found = [node for node in found if GOOGLE in (_vendors(node, groups) or {GOOGLE})]
    return found if any(node.name not in BESIDE_A_DEVICE for node in found) else []


def unknown_groups(nodes: Sequence[Path], groups: Path = IOMMU_GROUPS) -> list[Path]:
    """Return the VFIO groups among the nodes whose vendors are unknown."""
    numbered = [node for node in nodes if node.parent.name == "vfio" and node.name.isdigit()]
    return [node for node in numbered if not _vendors(node, groups)]


def _vendors(node: Path, groups: Path) -> set[str]:
    """Return the vendors of the devices of a VFIO group; empty if unknown.

    Bridges do not count: they may share a group with the devices behind them.
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
    """A user whose rights are checked, by the numbers of user and groups."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, path: Path, wanted: int) -> bool:
        """Return whether the modes of the file and of its folders allow the access (os.R_OK...).

        Access lists and read-only mounts are not checked.
        """
        return self.closed_at(path, wanted) is None

    def closed_at(self, path: Path, wanted: int) -> Path | None:
        """Return the first folder of the path that is closed to the user, or the path itself."""
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
    """Return a user that does not exist yet, with the rights of others."""
    return User(name, NO_USER, frozenset())


def user_called(name: str | None) -> User | None:
    """Return the user of that name, or the current one without a name; None if there is none."""
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_name, entry.pw_uid, frozenset(groups))


def inotify_instances(uid: int, proc: Path = Path("/proc")) -> int:
    """Return the number of a user's inotify instances in the processes that we may read."""
    count = 0
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == uid:
                links = (os.readlink(fd) for fd in (process / "fd").iterdir())
                count += sum(link == "anon_inode:inotify" for link in links)
    return count


def most_files(process: int | str) -> int | None:
    """Return the most files a process may open once it has raised its limit; None for no limit."""
    for line in Path(f"/proc/{process}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            hard = line.split()[4]
            return int(hard) if hard.isdigit() else None
    return None


def credentials(folders: Sequence[Path], unit: str = "hotreload") -> set[str]:
    """Return the credentials, by name, that the service's unit and drop-ins pass on."""
    found = (name for text in _unit_texts(folders, unit) for name in CREDENTIAL.findall(text))
    return {credential_name(name) for name in found}


def unit_limit(name: str, folders: Sequence[Path], unit: str = "hotreload") -> int | None:
    """Return a limit in the service's unit or drop-ins; None without such a line."""
    found = [
        re.findall(rf"(?m)^{name}=(\d+)([KMGT]?)$", text) for text in _unit_texts(folders, unit)
    ]
    last = next((limits[-1] for limits in found if limits), None)
    return None if last is None else int(last[0]) * 1024 ** " KMGT".index(last[1] or " ")


def _unit_texts(folders: Sequence[Path], unit: str) -> list[str]:
    """Return the texts of drop-ins and unit; drop-ins come first, since they override the unit."""
    files = [f for folder in folders for f in folder.glob(f"{unit}.service.d/*.conf")]
    name, is_one_of_several, _ = unit.partition("@")
    files += [folder / f"{name}{is_one_of_several}.service" for folder in folders]
    return [file.read_text(errors="replace") for file in files if file.is_file()]
