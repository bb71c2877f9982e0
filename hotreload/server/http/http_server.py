"""The server that serves on our sockets and leaves without loss.

Signals are the daemon's: it calls `stop`.
"""

import asyncio
import contextlib
import functools
import logging
import math
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import uvicorn
from fastapi import FastAPI

from hotreload.events import Event, GateChanged
from hotreload.server.http.connection_slots import Crowd, Elsewhere
from hotreload.server.http.connections import PeerProtocol
from hotreload.server.http.server_sockets import BACKLOG, is_for_looking
from hotreload.server.http.shared_counters import SharedNumbers
from hotreload.server.http.socket_paths import Doors
from hotreload.server_limits import Limits
from hotreload.types import GateState

log = logging.getLogger("hotreload.server")

ACCEPT_SECONDS = 0.02
"""Seconds after the name is removed in which the loop accepts clients that had connected."""
FLUSH_SECONDS = 0.01
LINGER_SECONDS = 0.5
"""Seconds a connection may be silent before its first request and between two."""
LASTING_LINGER_SECONDS = 2.0
"""The same where an idle connection keeps nobody waiting: a client may be about to ask again."""
CANCELLED_SECONDS = 5.0
"""Time for requests that were cancelled to put their things in order."""


class HttpServer(uvicorn.Server):
    """Serves until `stop`, and then still answers every request that had been sent.

    Sockets that are `lasting` outlive us: systemd holds them. On those it accepts nobody before
    the gate opens for the first time nor after it is sealed, so that whoever comes meanwhile
    waits in the socket for the one who can answer. Those for looking are served from the start.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        socket_paths: Doors,
        limits: Limits | None = None,
        graceful_seconds: float = 30.0,
        linger_seconds: float | None = None,
        lasting: bool = False,
        counts: SharedNumbers | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`elsewhere` is another process, which shares the `counts` and answers some requests."""
        limits, counts = limits or Limits(), counts or SharedNumbers()
        self._feeds = app.state.feeds
        self._graceful_seconds = graceful_seconds
        usual = LASTING_LINGER_SECONDS if lasting else LINGER_SECONDS
        self.linger_seconds = usual if linger_seconds is None else linger_seconds
        self.lasting = lasting
        self._opened = asyncio.Event()
        self._let_in: set[int] = set()
        """The replicas whose gates let somebody in."""
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._socket_paths = socket_paths
        self._elsewhere = elsewhere
        self._crowd_of = _crowds(limits, counts, elsewhere)
        protocol = functools.partial(
            PeerProtocol,
            arrival_seconds=limits.arrival_seconds,
            live=app.state.live,
            crowds=self._crowd_of,
            elsewhere=elsewhere,
        )
        super().__init__(_config(app, protocol, limits))

    async def serve(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Serve on these listening sockets until `stop` and the end of what is under way."""
        listeners = list(sockets or ())
        self._socket_paths.take(listeners, ours=not self.lasting)
        watching = asyncio.create_task(
            self._socket_paths.watch(self._serve_instead), name="our sockets"
        )
        try:
            if not self._stopping.is_set():
                await super().serve(listeners)
        finally:
            self._socket_paths.leave()
            await watching
            self._left.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on every socket; on lasting ones only when the gate has opened."""
        late = [each for each in sockets or [] if self.lasting and not is_for_looking(each)]
        at_once = [each for each in sockets or [] if each not in late]
        if self.lasting:  # asyncio closes what it served; who still waits in it is turned away
            at_once = [each.dup() for each in at_once]
        await super().startup(at_once)
        looking = self.servers
        if late:
            await self._opened.wait()
        if late and not self._stopping.is_set():
            await super().startup(late)
            self.servers += looking

    async def _serve_instead(self, listener: socket.socket) -> None:
        """Serve on this one too, and no more on the one whose name it has now.

        Clients that had connected to that one are accepted first, and stay connected.
        """
        name = listener.getsockname()
        former = [
            each for each in self.servers if name in [at.getsockname() for at in each.sockets]
        ]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connection, sock=listener, backlog=BACKLOG)
        self.servers.append(server)
        await asyncio.sleep(ACCEPT_SECONDS)
        for each in former:
            each.close()
            self.servers.remove(each)

    def _connection(self, began_with: bytes | None = None) -> asyncio.Protocol:
        """Make the protocol of a connection, as uvicorn makes it."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            began_with=began_with,
        )

    async def adopt(self, connection: socket.socket, began_with: bytes) -> None:
        """Go on with a connection that another process had, on which this came."""
        protocol = functools.partial(self._connection, began_with)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    def make_room(self, *, is_local: bool) -> None:
        """Close the oldest connection that does nothing."""
        self._crowd_of[is_local].make_room()

    def observe(self, event: Event) -> None:
        """On lasting sockets, accept only while any gate can let somebody in."""
        match event:
            case GateChanged(GateState.OPEN, replica=replica):
                self._let_in.add(replica)
                self._opened.set()
            case GateChanged(GateState.SEALED, replica=replica) if self.lasting:
                self._let_in.discard(replica)
                if not self._let_in:
                    self.stop()

    def stop(self, within: float | None = None) -> None:
        """Begin to leave; `serve` returns when all is answered or the grace is over.

        `within` says that the grace is shorter than it was to be.
        """
        if within is not None:
            self._graceful_seconds = min(self._graceful_seconds, within)
        self._stopping.set()
        self._opened.set()

    async def leave(self, within: float) -> None:
        """Stop, and wait at most this long until everybody who came is answered."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._left.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def main_loop(self) -> None:
        """Wait for `stop` on an event, where uvicorn polls ten times a second."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, answer those that came, end streams of events, leave.

        uvicorn's own drops those it has accepted and not read yet.
        """
        # From here on every answer ends its connection, so that nobody asks again on it. In
        # place: requests under way hold this list too.
        self.server_state.default_headers.append((b"connection", b"close"))
        if self._elsewhere is not None:
            self._elsewhere.go()
        self._socket_paths.leave()
        if not self.lasting:
            await asyncio.sleep(ACCEPT_SECONDS)
        for server in self.servers:
            server.close()
        asyncio.get_running_loop().call_later(self.linger_seconds, self._feeds.end)
        await asyncio.sleep(ACCEPT_SECONDS)  # lets the loop turn accepted sockets into connections
        await self._last_answers()

    async def _last_answers(self) -> None:
        """Wait until all is answered and sent; cut off the rest when the grace is over."""
        state = self.server_state
        idle_looks: Counter[object] = Counter()
        try:
            async with asyncio.timeout(self._graceful_seconds):
                while state.connections or state.tasks or self._is_answered_elsewhere:
                    self._close_idle(idle_looks)
                    await asyncio.sleep(FLUSH_SECONDS)
        except TimeoutError:
            log.warning("server.cut_off", extra={"requests": len(state.tasks)})
        for connection in list(state.connections):
            assert isinstance(connection, PeerProtocol)
            connection.cut_off()
        if state.tasks:  # most end by themselves when their client is gone
            _, late = await asyncio.wait(state.tasks, timeout=1.0)
            for task in late:
                task.cancel()
            if late:  # they have an engine to give back
                await asyncio.wait(late, timeout=CANCELLED_SECONDS)

    @property
    def _is_answered_elsewhere(self) -> bool:
        """True while another process answers somebody who came here."""
        return self._elsewhere is not None and not self._elsewhere.is_gone

    def _close_idle(self, looks: Counter[object]) -> None:
        """Close connections on which nothing has come for a while.

        Looks are counted and not seconds: what came while the loop stood still is not read yet.
        """
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PeerProtocol)
            looks[connection] = looks[connection] + 1 if connection.is_idle else 0
            if looks[connection] * FLUSH_SECONDS > self.linger_seconds:
                connection.shutdown()


def _crowds(
    limits: Limits, counts: SharedNumbers, elsewhere: Elsewhere | None
) -> Mapping[bool, Crowd]:
    """The places for connections, by whether they are of a unix socket."""

    def make_room(is_local: bool) -> bool:
        return elsewhere is not None and elsewhere.make_room(is_local=is_local)

    return {
        is_local: Crowd(limits.connections, count, functools.partial(make_room, is_local))
        for is_local, count in ((True, counts.local), (False, counts.remote))
    }


def _config(app: FastAPI, protocol: object, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # any callable does that makes a protocol
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
