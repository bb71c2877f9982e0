"""The HTTP server: accepts on our sockets, and shuts down without losing a request.

The daemon handles signals; it calls `stop`.
"""

import asyncio
import contextlib
import functools
import logging
import math
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from hotreload.events import Event, GateChanged
from hotreload.server.http.connections import PeerProtocol
from hotreload.server.http.limits import ConnectionSlots, SharedCounters
from hotreload.server.http.server_sockets import BACKLOG, TlsPair, is_for_views
from hotreload.server.http.socket_paths import SocketPaths
from hotreload.server.ports import OtherProcess
from hotreload.server_limits import Limits
from hotreload.threads import wait_at_most
from hotreload.types import GateState

log = logging.getLogger("hotreload.server")

ACCEPT_SECONDS = 0.02
"""Seconds after a path is removed in which the loop accepts clients that had connected."""
FLUSH_SECONDS = 0.01
LINGER_SECONDS = 0.5
"""Seconds that a connection may be silent during a shutdown."""
SYSTEMD_LINGER_SECONDS = 2.0
"""The same on systemd's sockets, where a longer shutdown delays no client."""
CANCELLED_SECONDS = 5.0
"""Seconds in which cancelled requests may clean up."""


class HttpServer(uvicorn.Server):
    """Serves until `stop`, and then answers every request that had been sent.

    Sockets `held_by_systemd` outlive the daemon. The server accepts on them only from the gate's
    first opening until the gate is sealed: earlier and later clients wait in the socket for a
    daemon that can answer. Sockets for views are served from the start.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        socket_paths: SocketPaths | None = None,
        limits: Limits | None = None,
        graceful_seconds: float = 30.0,
        linger_seconds: float | None = None,
        held_by_systemd: bool = False,
        counts: SharedCounters | None = None,
        other_process: OtherProcess | None = None,
    ) -> None:
        """`other_process` answers some of the requests, and shares the `counts`.

        Without `socket_paths` nothing is published of removed paths.
        """
        limits, counts = limits or Limits(), counts or SharedCounters()
        other_process = other_process or OtherProcess()
        self._feeds = app.state.feeds
        self._limits = limits
        self._tls: TlsPair | None = None
        self._graceful_seconds = graceful_seconds
        usual = SYSTEMD_LINGER_SECONDS if held_by_systemd else LINGER_SECONDS
        self.linger_seconds = usual if linger_seconds is None else linger_seconds
        self.held_by_systemd = held_by_systemd
        self._may_accept = asyncio.Event()
        self._open_gates: set[int] = set()
        """The replicas whose gates are open."""
        self._stopping = asyncio.Event()
        self._has_left = asyncio.Event()
        self._socket_paths = socket_paths or SocketPaths()
        self._other_process = other_process
        self._slots = {
            is_local: ConnectionSlots(
                limits.connections,
                count,
                functools.partial(other_process.make_room, is_local=is_local),
            )
            for is_local, count in ((True, counts.local), (False, counts.remote))
        }
        """The connection slots on unix sockets, at True, and over TCP, at False."""
        protocol = functools.partial(
            PeerProtocol,
            arrival_seconds=limits.arrival_seconds,
            live=app.state.live,
            slots=self._slots,
            other_process=other_process,
        )
        config = uvicorn.Config(
            app,
            http=protocol,  # type: ignore[arg-type]  # uvicorn takes any callable that makes a protocol
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_keep_alive=math.ceil(limits.keep_alive_seconds),
        )
        super().__init__(config)

    async def serve(
        self, sockets: Sequence[socket.socket] | None = None, tls: TlsPair | None = None
    ) -> None:
        """Serve on these listening sockets until `stop`; return once all requests have ended.

        With `tls`, clients over TCP must speak it.
        """
        listeners = list(sockets or ())
        self._tls = tls
        self._socket_paths.take(listeners, ours=not self.held_by_systemd)
        watching = asyncio.create_task(
            self._socket_paths.watch(self._replace_socket), name="our sockets"
        )
        try:
            if not self._stopping.is_set():
                await super().serve(listeners)
        finally:
            self._socket_paths.leave()
            await watching
            self._has_left.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on every socket; on systemd's only once the gate has opened."""
        late = [each for each in sockets or [] if self.held_by_systemd and not is_for_views(each)]
        at_once = [each for each in sockets or [] if each not in late]
        if self.held_by_systemd:  # asyncio closes the duplicates; the daemon refuses late clients
            at_once = [each.dup() for each in at_once]
        self.servers = [await self._accept_on(each) for each in at_once]
        self.started = True
        if late:
            await self._may_accept.wait()
        if not self._stopping.is_set():
            self.servers += [await self._accept_on(each) for each in late]

    async def _accept_on(self, listener: socket.socket) -> asyncio.Server:
        by_tls: dict[str, Any] = {}
        if self._tls is not None and listener.family != socket.AF_UNIX:
            by_tls = {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": self._limits.arrival_seconds,
                "ssl_shutdown_timeout": self._limits.write_seconds,
            }
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._connection, sock=listener, backlog=BACKLOG, **by_tls)

    async def _replace_socket(self, listener: socket.socket) -> None:
        """Serve on a new socket, and no longer on the one whose path it has taken.

        Clients that had connected to the former socket are accepted first, and stay connected.
        """
        name = listener.getsockname()
        former = [
            each for each in self.servers if name in [at.getsockname() for at in each.sockets]
        ]
        self.servers.append(await self._accept_on(listener))
        await asyncio.sleep(ACCEPT_SECONDS)
        for each in former:
            each.close()
            self.servers.remove(each)

    def _connection(self, first_bytes: bytes | None = None) -> asyncio.Protocol:
        """Make the protocol object of a connection, as uvicorn makes it."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            first_bytes=first_bytes,
        )

    async def adopt(self, connection: socket.socket, first_bytes: bytes) -> None:
        """Serve a connection that the other process handed over with these unanswered bytes."""
        protocol = functools.partial(self._connection, first_bytes)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    def make_room(self, *, is_local: bool) -> None:
        """Close the oldest idle connection."""
        self._slots[is_local].make_room()

    def observe(self, event: Event) -> None:
        """Accept once a gate opens; on systemd's sockets stop when all gates are sealed."""
        match event:
            case GateChanged(GateState.OPEN, replica=replica):
                self._open_gates.add(replica)
                self._may_accept.set()
            case GateChanged(GateState.SEALED, replica=replica) if self.held_by_systemd:
                self._open_gates.discard(replica)
                if not self._open_gates:
                    self.stop()

    def stop(self, within: float | None = None) -> None:
        """Begin the shutdown; `serve` returns once all is answered or the grace is over.

        `within` shortens the grace to this many seconds.
        """
        if within is not None:
            self._graceful_seconds = min(self._graceful_seconds, within)
        self._stopping.set()
        self._may_accept.set()

    async def stop_within(self, within: float) -> None:
        """Stop, and wait at most this long until all requests are answered."""
        self.stop()
        await wait_at_most(within, self._has_left)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def main_loop(self) -> None:
        """Wait for `stop` without polling; uvicorn polls ten times a second."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer all requests, and end the event streams.

        uvicorn's own shutdown drops connections that it has accepted and not read yet.
        """
        # From here on every answer closes its connection: no further request comes on it. The list
        # is changed in place because requests under way hold it, too.
        self.server_state.default_headers.append((b"connection", b"close"))
        self._other_process.shut_down()
        self._socket_paths.leave()
        if not self.held_by_systemd:
            await asyncio.sleep(ACCEPT_SECONDS)
        for server in self.servers:
            server.close()
        asyncio.get_running_loop().call_later(self.linger_seconds, self._feeds.end)
        await asyncio.sleep(ACCEPT_SECONDS)  # lets the loop turn accepted sockets into connections
        await self._finish_requests()

    async def _finish_requests(self) -> None:
        """Wait until all answers are sent; cut off the rest when the grace is over."""
        state = self.server_state
        idle_checks: Counter[object] = Counter()
        try:
            async with asyncio.timeout(self._graceful_seconds):
                while state.connections or state.tasks or not self._other_process.is_shut_down:
                    self._close_idle(idle_checks)
                    await asyncio.sleep(FLUSH_SECONDS)
        except TimeoutError:
            log.warning("server.cut_off", extra={"requests": len(state.tasks)})
        for connection in list(state.connections):
            assert isinstance(connection, PeerProtocol)
            connection.cut_off()
        if state.tasks:  # most end by themselves once their connection is closed
            _, late = await asyncio.wait(state.tasks, timeout=1.0)
            for task in late:
                task.cancel()
            if late:  # each still has to return its engine
                await asyncio.wait(late, timeout=CANCELLED_SECONDS)

    def _close_idle(self, checks: Counter[object]) -> None:
        """Close connections that have been idle for `linger_seconds`.

        Idle checks are counted and not seconds: bytes that came while the loop was blocked are not
        read yet.
        """
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PeerProtocol)
            checks[connection] = checks[connection] + 1 if connection.is_idle else 0
            if checks[connection] * FLUSH_SECONDS > self.linger_seconds:
                connection.shutdown()
