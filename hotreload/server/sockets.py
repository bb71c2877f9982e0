"""The sockets we bind ourselves, and the server that serves on them and leaves without loss.

Signals are the daemon's: it calls `stop`.
"""

import asyncio
import contextlib
import errno
import fcntl
import functools
import logging
import math
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from hotreload.errors import ConfigError
from hotreload.events import Event, GateChanged
from hotreload.server.activation import is_for_looking
from hotreload.server.crowd import Crowd
from hotreload.server.groups import group_id
from hotreload.server.limits import Limits
from hotreload.server.peers import PeerProtocol
from hotreload.types import GateState

log = logging.getLogger("hotreload.server")

BACKLOG = 2048
"""Large, because asyncio's clients believe they are connected when a unix backlog is full."""
ACCEPT_SECONDS = 0.02
"""Seconds after the name is removed in which the loop accepts those who had connected."""
FLUSH_SECONDS = 0.01
LINGER_SECONDS = 0.5
"""Seconds a connection may be silent before its first request and between two."""
LASTING_LINGER_SECONDS = 2.0
"""The same where an idle connection keeps nobody waiting: a client may be about to ask again."""


def bind_unix(path: Path, mode: int = 0o660, group: str | int | None = None) -> socket.socket:
    """Listen on a unix socket that has its mode and group before anyone can connect.

    A stale socket is replaced; a live one, or a file that is no socket, is a ConfigError.
    """
    path = path.absolute()
    gid = group_id(group, "[server] group") if group is not None else None
    _make_folder(path.parent)
    try:
        with _alone_in(path.parent):
            _clear(path)
            return _listen(path, mode, gid)
    except OSError as error:
        raise ConfigError(f"[server] socket: {path}: {error.strerror or error}") from error


def bind_tcp(address: str) -> socket.socket:
    """Listen on `host:port`; port 0 takes a free one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"[server] tcp: cannot listen on {address}: {error}") from error


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    try:
        folder.mkdir(mode=0o755)
    except OSError as error:
        raise ConfigError(
            f"[server] socket: its folder {folder} does not exist and cannot be made "
            f"({error.strerror}); create it, or name another"
        ) from error


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other daemons from taking the socket between our look at it and our bind."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"another hotreload is just binding a socket in {folder}") from None
    finally:
        os.close(lock)


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"[server] socket: {path} exists and is no socket; move it away")
    if _is_answered(path):
        raise ConfigError(
            f"another hotreload answers on {path}; stop it, or set another [server] socket"
        )
    path.unlink()


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        code = probe.connect_ex(os.fspath(path))
    if code in (errno.EACCES, errno.EPERM):
        raise ConfigError(f"[server] socket: {path} belongs to somebody else: {os.strerror(code)}")
    return code not in (errno.ECONNREFUSED, errno.ENOENT)


def _listen(path: Path, mode: int, gid: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(path))
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(mode)
        listener.listen(BACKLOG)  # nobody can connect before this line, whatever the mode is
    except BaseException:
        listener.close()
        raise
    return listener


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
        limits: Limits | None = None,
        graceful_seconds: float = 30.0,
        linger_seconds: float | None = None,
        lasting: bool = False,
    ) -> None:
        limits = limits or Limits()
        self._feeds = app.state.feeds
        self._graceful_seconds = graceful_seconds
        usual = LASTING_LINGER_SECONDS if lasting else LINGER_SECONDS
        self._linger_seconds = usual if linger_seconds is None else linger_seconds
        self.lasting = lasting
        self._opened = asyncio.Event()
        self._let_in: set[int] = set()
        """The replicas whose gates let somebody in."""
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._owned: list[tuple[str, tuple[int, int]]] = []
        protocol = functools.partial(
            PeerProtocol,
            arrival_seconds=limits.arrival_seconds,
            live=app.state.live,
            crowds={is_local: Crowd(limits.connections) for is_local in (True, False)},
        )
        super().__init__(_config(app, protocol, limits))

    async def serve(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Serve on these listening sockets until `stop` and the end of what is under way."""
        listeners = list(sockets or ())
        if not self.lasting:
            self._owned = [_identity(listener) for listener in listeners if _is_unix(listener)]
        try:
            if not self._stopping.is_set():
                await super().serve(listeners)
        finally:
            self._unlink()
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

    def stop(self) -> None:
        """Begin to leave; `serve` returns when all is answered or the grace is over."""
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
        if not self.lasting:
            self._unlink()
            await asyncio.sleep(ACCEPT_SECONDS)
        for server in self.servers:
            server.close()
        asyncio.get_running_loop().call_later(self._linger_seconds, self._feeds.end)
        await asyncio.sleep(ACCEPT_SECONDS)  # lets the loop turn accepted sockets into connections
        await self._last_answers()

    async def _last_answers(self) -> None:
        """Wait until all is answered and sent; cut off the rest when the grace is over."""
        state = self.server_state
        idle_looks: Counter[object] = Counter()
        try:
            async with asyncio.timeout(self._graceful_seconds):
                while state.connections or state.tasks:
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

    def _close_idle(self, looks: Counter[object]) -> None:
        """Close connections on which nothing has come for a while.

        Looks are counted and not seconds: what came while the loop stood still is not read yet.
        """
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PeerProtocol)
            looks[connection] = looks[connection] + 1 if connection.is_idle else 0
            if looks[connection] * FLUSH_SECONDS > self._linger_seconds:
                connection.shutdown()

    def _unlink(self) -> None:
        """Remove our sockets' names, unless another daemon has taken them since."""
        while self._owned:
            path, ours = self._owned.pop()
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                if (found.st_dev, found.st_ino) == ours:
                    os.unlink(path)


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


def _is_unix(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX


def _identity(listener: socket.socket) -> tuple[str, tuple[int, int]]:
    path = listener.getsockname()
    found = os.lstat(path)
    return path, (found.st_dev, found.st_ino)
