"""Processes that hold what others want: a file, a socket, an address. Reads /proc alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

LISTENS = "0A"
"""The state of a socket that listens, as /proc/net/tcp shows it."""
IpAddress = IPv4Address | IPv6Address
ACCEPTS = 0x10000
"""The flag of a socket that listens, as /proc/net/unix shows it."""
MOST_OF_A_COMMAND = 100
"""Bytes of a command line that are shown."""
NOT_OURS = "a process that this user may not look at; as root, `ss -ltnp` names it"


def who_has(address: str) -> str:
    """Name the process that listens on `host:port`, for a message."""
    listener = tcp_listener(address)
    found = [each.in_full for each in holders(listener)] if listener else []
    return " and ".join(found) or NOT_OURS


def process_of(pid: int) -> "Process":
    """Find the process of this id; without a name where it has ended."""
    with suppress(OSError):
        return Process(pid, Path(f"/proc/{pid}/comm").read_text().strip())
    return Process(pid, "unknown")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def in_full(self) -> str:
        """Its id and its command line, as far as we may read it."""
        words = self.name
        with suppress(OSError):
            written = Path(f"/proc/{self.pid}/cmdline").read_bytes()[:MOST_OF_A_COMMAND]
            words = written.replace(b"\0", b" ").decode(errors="backslashreplace").strip()
        return f"pid {self.pid} ({words or self.name})"


def holders(opened: object) -> Iterator[Process]:
    """Yield the processes that have a file or `socket:[inode]` open, as far as we may look."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is somebody else's
            if any(os.readlink(fd) == str(opened) for fd in (process / "fd").iterdir()):
                yield Process(int(process.name), (process / "comm").read_text().strip())


def listening_on(path: Path) -> str | None:
    """Find what listens under this name, as `socket:[inode]`; None when nothing does.

    It does not connect: under systemd that would start the daemon.
    """
    if not os.path.lexists(path):
        return None
    wanted = os.path.realpath(path)
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        *_, flags, _, _, inode, name = [*line.split(maxsplit=7), ""][:8]
        is_it = name.endswith(path.name) and os.path.realpath(name) == wanted
        if is_it and int(flags, 16) & ACCEPTS:
            return f"socket:[{inode}]"
    return None


def tcp_listener(address: str) -> str | None:
    """Find the `socket:[inode]` that keeps us from listening on `host:port`, without connecting."""
    host, _, port = address.rpartition(":")
    try:
        wanted = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:  # a name, which may stand for any address of this machine
        wanted = None
    for line in _lines(Path("/proc/net/tcp")) + _lines(Path("/proc/net/tcp6")):
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
