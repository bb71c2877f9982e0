"""Facts about this machine and what it lets a user do: devices, sockets, limits, units.

Reads /proc, /sys and /dev, and changes nothing.
"""

import os
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from hotreload.cli.unit_words import credential_name

DEVICE_NODES = ("accel[0-9]*", "vfio/[0-9]*", "vfio/vfio")
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")
GOOGLE = "0x1ae0"
"""The PCI vendor number of Google, who makes TPUs."""
CREDENTIAL = re.compile(r"^(?:Load|Set)Credential(?:Encrypted)?=([^:\n]+)", re.MULTILINE)
NO_USER = 65534
SERVICE_USER = "hotreload"
"""The user as whom the service runs, unless `install-unit --user` names another."""
LISTENS = "0A"
"""The state of a socket that listens, as /proc/net/tcp shows it."""
IpAddress = IPv4Address | IPv6Address
ACCEPTS = 0x10000
"""The flag of a socket that listens, as /proc/net/unix shows it."""


def accelerators(dev: Path = Path("/dev"), groups: Path = IOMMU_GROUPS) -> list[Path]:
    """Find the nodes of accelerators; vfio/vfio, which every VFIO user has, never comes alone.

    A VFIO group of another vendor (a disk that is passed to a guest) is not an accelerator.
    """
    found = [node for pattern in DEVICE_NODES for node in sorted(dev.glob(pattern))]
    found = [node for node in found if GOOGLE in (_vendors(node, groups) or {GOOGLE})]
    return found if any(node.name != "vfio" for node in found) else []


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
    """Find what listens under this name, as `socket:[inode]`; None when nothing does.

    It does not connect: under systemd that would start the daemon.
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


def tcp_listener(address: str, tables: Path = Path("/proc/net")) -> str | None:
    """Find the `socket:[inode]` that keeps us from listening on `host:port`, without connecting."""
    host, _, port = address.rpartition(":")
    try:
        wanted = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:  # a name, which may stand for any address of this machine
        wanted = None
    for line in _lines(tables / "tcp") + _lines(tables / "tcp6"):
        _, local, _, state, *_, inode = line.split()[:10]
        taken, _, at = local.partition(":")
        if state == LISTENS and int(at, 16) == int(port) and _collide(wanted, _address(taken)):
            return f"socket:[{inode}]"
    return None


def _lines(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []


def _address(written: str) -> IpAddress:
    """Read an address of /proc/net/tcp: on most machines each four bytes are turned round."""
    raw, turn = bytes.fromhex(written), -1 if sys.byteorder == "little" else 1
    return ip_address(b"".join(raw[at : at + 4][::turn] for at in range(0, len(raw), 4)))


def _collide(wanted: IpAddress | None, taken: IpAddress) -> bool:
    every = wanted is None or wanted.is_unspecified or taken.is_unspecified
    return every or wanted == taken


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
