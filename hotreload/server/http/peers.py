"""The process at the other end of a connection: its identity, from the kernel, and its hang-up."""

import asyncio
import select
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from termios import TIOCOUTQ

from starlette.requests import Request

SO_PEERGROUPS = 59
"""Linux; Python's socket module does not name it."""

OVERFLOW = Path("/proc/sys/kernel")
"""The folder of the files with the overflow ids, shown for ids that our user namespace lacks."""
USUAL_OVERFLOW_ID = 65534
"""The kernel's default overflow id."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, and its user and groups."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """The primary group and the supplementary ones."""


def overflow_id(kind: str) -> int:
    """Return the overflow `uid` or `gid`: it stands for all ids that the user namespace lacks."""
    try:
        return int((OVERFLOW / f"overflow{kind}").read_text())
    except (OSError, ValueError):
        return USUAL_OVERFLOW_ID


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected to this unix socket."""
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


def peer_of_transport(transport: asyncio.Transport) -> Peer | None:
    """Return the process that connected; None over TCP, where the kernel does not know it."""
    wrapped = transport.get_extra_info("socket")
    if wrapped.family != socket.AF_UNIX:
        return None
    return peer_of(wrapped)


def peer_of_request(request: Request) -> Peer | None:
    """Return the process that sent the request, as the kernel names it; None over TCP."""
    peer: Peer | None = request.scope.get("extensions", {}).get("peer")
    return peer


def count_unread(transport: asyncio.Transport) -> int:
    """Return how many bytes the kernel keeps that the peer of a TCP connection has not got yet."""
    try:
        found = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is closed
        return 0
    return int.from_bytes(found, sys.byteorder)


class HangUpWatch:
    """Calls `gone` when a client that has closed its sending half closes the other half, too.

    asyncio no longer polls such a connection. On a unix socket the kernel reports the close at
    once; over TCP the next write to the client fails.
    """

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll(1)
        ended = select.EPOLLHUP | select.EPOLLERR
        self._poll.register(transport.get_extra_info("socket").fileno(), ended)
        self._loop.add_reader(self._poll.fileno(), gone)

    def close(self) -> None:
        """Stop watching."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()
