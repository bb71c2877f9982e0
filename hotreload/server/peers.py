"""Each connection: who is at its other end, and how long its headers may be and take."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hotreload.server.exchange import generation_header
from hotreload.server.limits import headers_too_long
from hotreload.server.problems import Refused, problem_of
from hotreload.types import Generation

SO_PEERGROUPS = 59
"""Linux; Python's socket module does not name it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as the kernel says."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """Its own group and the supplementary ones."""


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


class PeerProtocol(H11Protocol):
    """uvicorn's protocol, which knows its peer and does not wait for headers for ever.

    On h11 and not httptools, because h11 stops reading headers that are too long.
    """

    def __init__(
        self,
        *args: Any,
        arrival_seconds: float,
        live: Callable[[], Generation | None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._arrival_seconds = arrival_seconds
        self._live = live
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who came, and wait for the first request."""
        super().connection_made(transport)
        _send_at_once(transport)
        self.app = _Introduced(self.app, transport, self._expect_reading)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._headers_came()
        self._expect_no_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; the first one of its headers starts their deadline."""
        if self._deadline is None and self.is_idle:
            self._await_headers()
        super().data_received(data)
        if not self.is_idle:
            self._headers_came()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP or has headers without end: uvicorn's call for both."""
        if self.conn.our_state is h11.SEND_BODY:  # an answer is under way: cut it off
            self.transport.abort()
            return
        live = self._live()
        problem = problem_of(_fault(sys.exception(), msg))
        problem.headers.update(generation_header(live) if live else {})
        headers = [*problem.raw_headers, (b"connection", b"close")]
        status = problem.status_code
        reason = HTTPStatus(status).phrase.encode()
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=bytes(problem.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._expect_reading(self._arrival_seconds)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way on it."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_reading(self, within: float) -> None:
        """Hang up when the client takes nothing for so long of an answer that is all written.

        A close would wait for it without end, and until then the connection keeps its descriptor.
        """
        self._expect_no_reading()
        if unsent := self.transport.get_write_buffer_size():
            self._reading = self.loop.call_later(within, self._check_read, unsent, within)

    def _check_read(self, unsent: int, within: float) -> None:
        if not self.is_idle:  # each piece of the next answer has a deadline of its own
            return
        if self.transport.get_write_buffer_size() >= unsent:
            self.transport.abort()
        else:
            self._expect_reading(within)

    def _expect_no_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(self._arrival_seconds, self.transport.abort)

    def _headers_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Introduced:
    """The app, told who is at the other end of this connection and how to hang up on it."""

    def __init__(
        self, app: Any, transport: asyncio.Transport, expect_reading: Callable[[float], None]
    ) -> None:
        self._app = app
        self._extensions: dict[str, Any] = {
            "hang_up": transport.abort,
            "expect_reading": expect_reading,
        }
        peer = _peer_behind(transport)
        if peer is not None:
            self._extensions["peer"] = peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = self._extensions
        await self._app(scope, receive, send)


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let no piece wait for the client's word that it has the one before: 40 ms each over TCP.

    asyncio sees to that only on sockets that name their protocol, and accepted ones do not.
    """
    wrapped = transport.get_extra_info("socket")
    if wrapped.family != socket.AF_UNIX:
        with socket.socket(fileno=os.dup(wrapped.fileno())) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _peer_behind(transport: asyncio.Transport) -> Peer | None:
    wrapped = transport.get_extra_info("socket")
    if wrapped.family != socket.AF_UNIX:
        return None
    # A duplicate, because asyncio and uvloop wrap the socket in things of their own.
    with socket.socket(fileno=os.dup(wrapped.fileno())) as connection:
        return peer_of(connection)


def _fault(error: BaseException | None, msg: str) -> Refused:
    if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
        return headers_too_long()
    return Refused(400, "bad_http", f"this is not HTTP: {error or msg}")
