"""The process at the other end of a unix socket, as the kernel names it."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SO_PEERGROUPS = 59
"""Linux; Python's socket module does not name it."""

OVERFLOW = Path("/proc/sys/kernel")
"""The kernel's files with the ids that it shows for those whom our user namespace does not know."""
USUAL_OVERFLOW_ID = 65534
"""The id that it has unless somebody changed it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as the kernel says."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """Its own group and the supplementary ones."""


def overflow_id(kind: str) -> int:
    """The `uid` or `gid` of nobody: all whom the user namespace does not know have it."""
    try:
        return int((OVERFLOW / f"overflow{kind}").read_text())
    except (OSError, ValueError):
        return USUAL_OVERFLOW_ID


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel who connected to this unix socket."""
    pid, uid, gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return Peer(pid, uid, gid, frozenset({gid, *_supplementary(connection)}))


def _supplementary(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError:  # a kernel before 4.13, or more than 256 groups
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def peer_behind(transport: asyncio.Transport) -> Peer | None:
    """Ask who connected; None over TCP, where nobody can tell."""
    wrapped = transport.get_extra_info("socket")
    if wrapped.family != socket.AF_UNIX:
        return None
    return peer_of(wrapped)
