"""Connections: how long each may take to ask and to read."""

import asyncio
import select
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hotreload.server.http.connection_slots import Crowd, Elsewhere
from hotreload.server.http.limits import headers_too_long
from hotreload.server.http.peers import peer_behind
from hotreload.server.http.problems import Refused, problem_of
from hotreload.server.http.request_log import generation_header
from hotreload.server.http.sse import EVENT_STREAM
from hotreload.types import Generation

LONGEST_READING = 40
"""A client may take so many times `write_seconds` in all to read the rest of an answer."""
COMMENT = b": are you there?\n\n"
"""A comment in a stream of events: it asks a client that sends no more whether it reads."""


class UntilGone:
    """Says when the other end of a connection, from which nothing comes, is not read any more.

    asyncio no longer looks at such a connection. A unix socket tells at once, one of TCP when what
    was written to it comes back.
    """

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll(1)
        ended = select.EPOLLHUP | select.EPOLLERR
        self._poll.register(transport.get_extra_info("socket").fileno(), ended)
        self._loop.add_reader(self._poll.fileno(), gone)

    def close(self) -> None:
        """Look no more."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()


class PeerProtocol(H11Protocol):
    """uvicorn's protocol, which knows its peer and does not wait for headers for ever.

    On h11 and not httptools, because h11 stops reading headers that are too long.
    """

    def __init__(
        self,
        *args: Any,
        arrival_seconds: float,
        live: Callable[[], Generation | None],
        crowds: Mapping[bool, Crowd],
        elsewhere: Elsewhere | None = None,
        began_with: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        """`began_with` came on a connection that another process had; None where we accepted it."""
        super().__init__(*args, **kwargs)
        self._elsewhere = elsewhere
        self._began_with = began_with
        self._arrival_seconds = arrival_seconds
        self._live = live
        self._crowds = crowds
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._was_cut_off = False
        self.sends_no_more = False
        """True if its client has closed its half."""
        self._until_gone: UntilGone | None = None
        self._waits_to_go = False
        """True while a request is for elsewhere, and answers to those before it are not written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who came, and wait for the first request."""
        super().connection_made(transport)
        is_local = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._crowd = self._crowds[is_local]
        if self._began_with is not None:
            self._crowd.take_in(self)
        elif not self._crowd.join(self):
            self._refuse(_crowded())
            return
        _send_at_once(transport)
        can: dict[str, Callable[..., Any]] = {
            "hang_up": transport.abort,
            "expect_reading": self._expect_reading,
            "was_cut_off": lambda: self._was_cut_off,
            "write_at_once": self._write_at_once,
        }
        self.app = self._introduced = _Introduced(self.app, transport, can)
        self._await_headers()
        if self._began_with:
            self.data_received(self._began_with)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines of this connection."""
        self._crowd.leave(self)
        self._headers_came()
        self._expect_no_reading()
        if self._until_gone is not None:
            self._until_gone.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; the first one of its headers starts their deadline."""
        if self._deadline is None and self.is_idle:
            self._await_headers()
        super().data_received(data)
        if not self.is_idle:
            self._headers_came()

    def handle_events(self) -> None:
        """Go on with what came, unless another process is to answer it: then it has it all.

        It has the connection once all that was answered here is written.
        """
        data = self._for_elsewhere()
        self._waits_to_go = bool(data and self.transport.get_write_buffer_size())
        if self._waits_to_go:
            self._unset_keepalive_if_required()
            self.flow.pause_reading()
            self.transport.set_write_buffer_limits(0)  # it says so when nothing is left to write
        elif not data or not self._went_elsewhere(data):
            super().handle_events()

    def resume_writing(self) -> None:
        """Write on, or go elsewhere if only this was in the way."""
        super().resume_writing()
        if self._waits_to_go:
            self.loop.call_soon(self._all_is_written)

    def _all_is_written(self) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits()
            self.flow.resume_reading()
            self.handle_events()

    def _for_elsewhere(self) -> bytes:
        """Return what came of a request that another process is to answer; else nothing."""
        if self._elsewhere is None or self.conn.their_state is not h11.IDLE or self._is_answering:
            return b""
        data, _ = self.conn.trailing_data
        return data if data and self._elsewhere.is_for(data) else b""

    def _went_elsewhere(self, data: bytes) -> bool:
        assert self._elsewhere is not None, "it is for there"
        connection = self.transport.get_extra_info("socket")
        try:
            if not self._elsewhere.hand_over(connection.fileno(), data):
                return False
        except OSError:
            self._refuse(_crowded())
            return True
        self.transport.abort()  # of ours; the connection itself goes on
        return True

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay connected to a client that sends no more and may wait for an answer."""
        if self._owes_an_answer and not self.sends_no_more:
            self.sends_no_more = True
            with suppress(OSError):  # no descriptor is left: who is gone has its answer made
                self._until_gone = UntilGone(self.transport, self.transport.abort)
            self._ask_whether_it_reads()
        return self._owes_an_answer

    def on_response_complete(self) -> None:
        """Begin with what was sent meanwhile; hang up if the client sends no more and has all."""
        super().on_response_complete()
        if self.sends_no_more and not self._owes_an_answer:
            self.transport.close()

    @property
    def _owes_an_answer(self) -> bool:
        """True if a request came whole and is not answered yet, or one goes elsewhere."""
        return self._waits_to_go or (self._is_answering and not self.cycle.more_body)

    def _ask_whether_it_reads(self) -> None:
        """Send what every client passes over; from one that is gone it comes back.

        A unix socket says so by itself. What follows a stream's next piece may be long in coming.
        """
        if self._crowd is not self._crowds[False]:
            return
        knows_it = (self.conn.their_http_version or b"") >= b"1.1"
        if knows_it and self.conn.our_state is h11.SEND_RESPONSE:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(go_on) or b"")
        elif self.conn.our_state is h11.SEND_BODY and self._introduced.sends_events:
            self.transport.write(self.conn.send(h11.Data(data=COMMENT)) or b"")

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, or headers without end; uvicorn calls this for both."""
        if self.conn.our_state is h11.SEND_BODY:  # an answer is under way: cut it off
            self.transport.abort()
            return
        self._refuse(_fault(sys.exception(), msg))

    def _refuse(self, fault: Refused) -> None:
        """Answer at once, whatever was asked, and close."""
        live = self._live()
        problem = problem_of(fault)
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

    def cut_off(self) -> None:
        """Hang up because the daemon leaves, whatever is under way."""
        self._was_cut_off = True
        self.transport.abort()

    @property
    def is_idle(self) -> bool:
        """True if no request is under way on it, and none waits to go elsewhere."""
        return not self._is_answering and not self._waits_to_go

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_spare(self) -> bool:
        """True if it may be closed: it is idle, and all it was sent is on its way."""
        return self.is_idle and not self.transport.get_write_buffer_size()

    def _write_at_once(self, piece: bytes) -> bool:
        """Write a piece of a stream's body, unless it must wait for the client; say if it did.

        Much of a token's time would go into asking h11, and all who stand between a route and its
        connection: nobody there counts the pieces of such a body, and its end goes the usual way.
        A piece that waits does, too: there it has its deadline.
        """
        if self.flow.write_paused or not piece or not self._introduced.sends_chunks:
            return False
        if not self.cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _expect_reading(self, within: float) -> None:
        """Hang up when the client reads nothing of a written answer for too long.

        A close would wait for it without end, and until then the connection keeps its descriptor.
        """
        self._look_at_reading(within, LONGEST_READING)

    def _look_at_reading(self, within: float, looks: int) -> None:
        self._expect_no_reading()
        if unsent := self.transport.get_write_buffer_size():
            check = partial(self._check_read, unsent, within, looks - 1)
            self._reading = self.loop.call_later(within, check)

    def _check_read(self, unsent: int, within: float, looks: int) -> None:
        if self._is_answering:  # each piece of the next answer has a deadline of its own
            return
        if self.transport.get_write_buffer_size() >= unsent or not looks:
            self.transport.abort()
        else:
            self._look_at_reading(within, looks)

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
        self, app: Any, transport: asyncio.Transport, can: Mapping[str, Callable[..., Any]]
    ) -> None:
        """`can` is what the app may ask of the connection."""
        self._app = app
        self._extensions: dict[str, Any] = {**can}
        peer = peer_behind(transport)
        if peer is not None:
            self._extensions["peer"] = peer
        self.sends_events = False
        """True if the answer that began last is a stream of server-sent events."""
        self.sends_chunks = False
        """True if h11 frames the pieces of that stream each by itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.sends_events = EVENT_STREAM in message["headers"]
                has_body = scope["method"] != "HEAD"
                knows_chunks = scope["http_version"] >= "1.1"
                self.sends_chunks = self.sends_events and has_body and knows_chunks
            await send(message)

        scope["extensions"] = self._extensions
        await self._app(scope, receive, noting)


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let no piece wait for the client's word that it has the one before: 40 ms each over TCP.

    asyncio sees to that only on sockets that name their protocol, and accepted ones do not.
    """
    wrapped = transport.get_extra_info("socket")
    if wrapped.family != socket.AF_UNIX:
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _crowded() -> Refused:
    words = "all connections are in use"
    return Refused(503, "too_many_connections", words, headers={"Retry-After": "1"})


def _fault(error: BaseException | None, msg: str) -> Refused:
    if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
        return headers_too_long()
    return Refused(400, "bad_http", f"this is not HTTP: {error or msg}")
