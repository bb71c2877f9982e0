"""One client's connection: its deadlines to send a request and to read the answer, and handover."""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hotreload.server.http.limits import ConnectionSlots, headers_too_long
from hotreload.server.http.problems import Refused, raw_answer
from hotreload.server.http.request_log import generation_header
from hotreload.server.http.senders import HangUpWatch, count_unread, peer_of
from hotreload.server.http.sse import EVENT_STREAM
from hotreload.server.ports import OtherProcess
from hotreload.types import Generation

MOST_READ_CHECKS = 40
"""A client may take this many times `write_seconds` to read the rest of an answer."""
COMMENT = b": are you there?\n\n"
"""A comment in an event stream: writing it fails once the client is gone."""


class PeerProtocol(H11Protocol):
    """uvicorn's protocol with a slot limit, deadlines, the peer's identity, and handover.

    It uses h11 and not httptools, because h11 stops reading headers that are too long.
    """

    def __init__(
        self,
        *args: Any,
        arrival_seconds: float,
        live: Callable[[], Generation | None],
        slots: Mapping[bool, ConnectionSlots],
        other_process: OtherProcess,
        first_bytes: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        """`first_bytes` came before the other process handed this connection over.

        None for a connection that this process accepted.
        """
        super().__init__(*args, **kwargs)
        self._other_process = other_process
        self._first_bytes = first_bytes
        self._arrival_seconds = arrival_seconds
        self._live = live
        self._all_slots = slots
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._was_cut_off = False
        self.is_half_closed = False
        """True once the client has closed its sending half."""
        self._hang_up_watch: HangUpWatch | None = None
        self._is_encrypted = False
        """True over TLS, which this process alone can speak on the connection."""
        self._is_handover_pending = False
        """True while a request for the other process waits for earlier answers to be written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a slot, read the peer's identity, and start the deadline of the first request."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        is_local = connection.family == socket.AF_UNIX
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._slots = self._all_slots[is_local]
        if self._first_bytes is not None:
            self._slots.add(self)
        elif not self._slots.take_slot(self):
            self._refuse(_all_slots_taken())
            return
        extensions: dict[str, Any] = {
            "hang_up": transport.abort,
            "watch_reader": self._watch_reader,
            "was_cut_off": lambda: self._was_cut_off,
            "write_at_once": self._write_at_once,
        }
        if is_local:
            extensions["peer"] = peer_of(connection)
        else:
            # Without it each piece of a stream waits up to 40 ms for an acknowledgement. asyncio
            # sets it only on sockets that name their protocol, which accepted sockets do not.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app = self._app_of_connection = _AppOfConnection(self.app, extensions)
        self._start_header_deadline()
        if self._first_bytes:
            self.data_received(self._first_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the slot and cancel the deadlines."""
        self._slots.free_slot(self)
        self._cancel_header_deadline()
        self._stop_watching_reader()
        if self._hang_up_watch is not None:
            self._hang_up_watch.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser; a request's first byte starts the deadline of its headers."""
        if self._deadline is None and self.is_idle:
            self._start_header_deadline()
        super().data_received(data)
        if not self.is_idle:
            self._cancel_header_deadline()

    def handle_events(self) -> None:
        """Answer the request here, or hand the connection to the other process that answers it.

        The connection is handed over once all earlier answers are written.
        """
        data = self._bytes_for_other_process()
        self._is_handover_pending = bool(data and self.transport.get_write_buffer_size())
        if self._is_handover_pending:
            self._unset_keepalive_if_required()
            self.flow.pause_reading()
            self.transport.set_write_buffer_limits(0)  # calls resume_writing once all is written
        elif not data or not self._hand_over(data):
            super().handle_events()

    def resume_writing(self) -> None:
        """Continue writing, or hand the connection over if only unwritten bytes delayed that."""
        super().resume_writing()
        if self._is_handover_pending:
            self.loop.call_soon(self._all_is_written)

    def _all_is_written(self) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits()
            self.flow.resume_reading()
            self.handle_events()

    def _bytes_for_other_process(self) -> bytes:
        """Return the bytes of a request that the other process answers; else b""."""
        is_request_next = self.conn.their_state is h11.IDLE and not self._is_answering
        if self._is_encrypted or not is_request_next:
            return b""
        data, _ = self.conn.trailing_data
        return data if data and self._other_process.is_for(data) else b""

    def _hand_over(self, data: bytes) -> bool:
        connection = self.transport.get_extra_info("socket")
        try:
            if not self._other_process.hand_over(connection.fileno(), data):
                return False
        except OSError:
            self._refuse(_all_slots_taken())
            return True
        self.transport.abort()  # closes our descriptor alone; the connection stays open
        return True

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection if the client, which sends no more, still waits for an answer.

        Over TLS there is no half of a connection: the client is gone.
        """
        if self._is_encrypted:
            return False
        if self._has_unsent_answer and not self.is_half_closed:
            self.is_half_closed = True
            with suppress(OSError):  # no descriptor is left: the answer is computed in any case
                self._hang_up_watch = HangUpWatch(self.transport, self.transport.abort)
            self._probe_client()
        return self._has_unsent_answer

    def on_response_complete(self) -> None:
        """Begin the next request; hang up if the client sends no more and has all its answers."""
        super().on_response_complete()
        if self.is_half_closed and not self._has_unsent_answer:
            self.transport.close()

    @property
    def _has_unsent_answer(self) -> bool:
        """True if a complete request is not answered yet, or a handover is pending."""
        return self._is_handover_pending or (self._is_answering and not self.cycle.more_body)

    def _probe_client(self) -> None:
        """Write bytes that every client ignores; over TCP the write fails if the client is gone.

        A unix socket needs no probe. The stream's next piece may come too late to serve as one.
        """
        if self._slots is not self._all_slots[False]:
            return
        knows_it = (self.conn.their_http_version or b"") >= b"1.1"
        if knows_it and self.conn.our_state is h11.SEND_RESPONSE:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(interim) or b"")
        elif self.conn.our_state is h11.SEND_BODY and self._app_of_connection.sends_events:
            self.transport.write(self.conn.send(h11.Data(data=COMMENT)) or b"")

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, or headers that are too long; uvicorn calls it."""
        if self.conn.our_state is h11.SEND_BODY:  # cut off the answer under way
            self.transport.abort()
            return
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(headers_too_long())
        else:
            self._refuse(Refused(400, "bad_http", f"this is not HTTP: {error or msg}"))

    def _refuse(self, fault: Refused) -> None:
        """Write this error as the answer, and close the connection."""
        live = self._live()
        self.transport.write(raw_answer(fault, generation_header(live) if live else {}))
        self.transport.close()
        self._watch_reader(self._arrival_seconds)

    def shutdown(self) -> None:
        """Close the connection once it is idle; over TLS without a wait for the client's part."""
        if self._is_encrypted and self.is_closable:
            self.transport.abort()
        elif not self.transport.is_closing():  # asyncio forgets a TLS transport closed twice
            super().shutdown()

    def cut_off(self) -> None:
        """Hang up at once, because the daemon ends."""
        self._was_cut_off = True
        self.transport.abort()

    @property
    def is_idle(self) -> bool:
        """True if no request is under way on the connection and no handover is pending."""
        return not self._is_answering and not self._is_handover_pending

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_closable(self) -> bool:
        """True if the connection is idle and all its answers are written.

        A TLS transport has written what the one below it still keeps: there the client has it all.
        """
        is_unread = self._is_encrypted and count_unread(self.transport)
        return self.is_idle and not self.transport.get_write_buffer_size() and not is_unread

    def _write_at_once(self, piece: bytes) -> bool:
        """Write a piece of a stream's body past h11 and the middleware; False if it cannot.

        That saves much of the time a token takes: no middleware needs to see each piece. The end
        of the body takes the usual way. A piece that must wait for the client does, too: there it
        has its deadline.
        """
        if self.flow.write_paused or not piece or not self._app_of_connection.sends_chunks:
            return False
        if not self.cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _watch_reader(self, seconds: float) -> None:
        """Hang up if the client reads nothing of the written answer for this long.

        A normal close would wait for the client without a limit and keep the descriptor.
        """
        self._check_reader_later(seconds, MOST_READ_CHECKS)

    def _check_reader_later(self, seconds: float, checks_left: int) -> None:
        self._stop_watching_reader()
        if unsent := self.transport.get_write_buffer_size():
            check = partial(self._check_reader, unsent, seconds, checks_left - 1)
            self._reading = self.loop.call_later(seconds, check)

    def _check_reader(self, unsent: int, seconds: float, checks_left: int) -> None:
        if self._is_answering:  # each piece of the next answer has a deadline of its own
            return
        if self.transport.get_write_buffer_size() >= unsent or not checks_left:
            self.transport.abort()
        else:
            self._check_reader_later(seconds, checks_left)

    def _stop_watching_reader(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _start_header_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._arrival_seconds, self.transport.abort)

    def _cancel_header_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@dataclass(slots=True)
class _AppOfConnection:
    """Calls the app with this connection's peer and controls in the scope."""

    app: ASGIApp
    extensions: dict[str, Any]
    """The peer, and the calls by which the app controls the connection."""
    sends_events: bool = False
    """True if the current answer is a stream of server-sent events."""
    sends_chunks: bool = False
    """True if h11 sends each piece of that stream as a chunk of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def note_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.sends_events = EVENT_STREAM in message["headers"]
                has_body = scope["method"] != "HEAD"
                knows_chunks = scope["http_version"] >= "1.1"
                self.sends_chunks = self.sends_events and has_body and knows_chunks
            await send(message)

        scope["extensions"] = self.extensions
        await self.app(scope, receive, note_head)


def _all_slots_taken() -> Refused:
    return Refused(503, "too_many_connections", "all connections are in use", retry_after=1)
