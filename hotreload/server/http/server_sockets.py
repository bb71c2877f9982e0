"""The sockets that we listen on: those we bind, and those systemd opened for us.

systemd keeps its sockets open from one of us to the next. When a socket will not be served, the
clients that wait in it are told why.
"""

import contextlib
import errno
import grp
import os
import socket
import stat
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from hotreload.errors import AddressTaken, ConfigError, NotServing
from hotreload.facts.files import locked
from hotreload.facts.holders import process_of, who_has
from hotreload.facts.socket_names import LOOKING
from hotreload.server.http.peers import peer_of
from hotreload.server.http.problems import problem_of

BACKLOG = 2048
"""Large, because asyncio's clients believe they are connected when a unix backlog is full."""


FIRST_DESCRIPTOR = 3
SYSTEMD_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
SYSTEMD_NAME = "http"
REQUEST_SECONDS = 0.5
"""Seconds in which clients that are turned away may still send their request."""


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
        words = f"[server] tcp: cannot listen on {address}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise AddressTaken(
                f"{words}: {who_has(address)} has it; stop that, or choose another port"
            ) from error
        raise ConfigError(f"{words}: {error}") from error


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
    try:
        with locked(folder):
            yield
    except BlockingIOError:
        raise AddressTaken(f"another hotreload is starting in {folder}; try again") from None


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"[server] socket: {path} exists and is no socket; move it away")
    if (answerer := _answerer(path)) is not None:
        raise AddressTaken(
            f"another hotreload answers on {path}{answerer}; stop it, or set another [server] "
            "socket"
        )
    path.unlink()


def _answerer(path: Path) -> str | None:
    """Name who listens there, where the kernel says who it is; None if nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # one that is full answers too, and says so at once
        code = probe.connect_ex(os.fspath(path))
        pid = peer_of(probe).pid if not code else 0
    if code in (errno.EACCES, errno.EPERM):
        raise ConfigError(f"[server] socket: {path} belongs to somebody else: {os.strerror(code)}")
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        return None
    return f": {process_of(pid).in_full}" if pid else ""


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


def take_over(
    environ: MutableMapping[str, str] = os.environ, *, first: int = FIRST_DESCRIPTOR
) -> list[socket.socket]:
    """Take the listening sockets that systemd passed to this process; there may be none.

    Processes that we start inherit neither the sockets nor the variables that tell of them.
    """
    pid, count, names = (environ.pop(name, "") for name in SYSTEMD_VARIABLES)
    if not pid.isdecimal() or int(pid) != os.getpid() or not count.isdecimal():
        return []  # none, or meant for another process
    named = names.split(":") if names else [SYSTEMD_NAME] * int(count)
    return [_taken(first + index, name) for index, name in enumerate(named[: int(count)])]


def is_for_looking(listener: socket.socket) -> bool:
    """True if it is the socket for clients that only look while the daemon starts."""
    name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    return isinstance(name, str) and name.endswith(LOOKING)  # an abstract one's is bytes


def _taken(descriptor: int, name: str) -> socket.socket:
    if name != SYSTEMD_NAME:
        raise ConfigError(
            f"systemd passes a socket called {name!r}; write FileDescriptorName={SYSTEMD_NAME} "
            "into its .socket unit"
        )
    try:
        os.set_inheritable(descriptor, False)
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise _wrong(descriptor, "it is no socket; use ListenStream=")
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise _wrong(descriptor, error.strerror or str(error)) from error
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise _wrong(descriptor, "it is not listening; use ListenStream= and Accept=no")
    return listener


def _wrong(descriptor: int, why: str) -> ConfigError:
    return ConfigError(f"descriptor {descriptor} that systemd passes cannot be served on: {why}")


def group_id(group: str | int, setting: str) -> int:
    """The number of a group; ConfigError names the setting when there is none."""
    if isinstance(group, int) or group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"{setting}: there is no group {group!r} on this machine") from None


def turn_away(listeners: Sequence[socket.socket], fault: ConfigError) -> None:
    """Answer 503, and why, to all clients that wait in these sockets, which will not be served.

    systemd starts the service again for each connection that is left in a socket of its own, even
    for one whose client is gone.
    """
    answer = _refusal(fault)
    until = time.monotonic() + REQUEST_SECONDS
    for listener in listeners:
        with contextlib.suppress(OSError):  # nobody waits any more, or the socket is closed
            listener.setblocking(False)
            for _ in range(BACKLOG):
                connection, _ = listener.accept()
                _tell(connection, answer, max(0.0, until - time.monotonic()))


def _tell(connection: socket.socket, answer: bytes, seconds: float) -> None:
    """Answer once the request is here, or after so many seconds.

    Unread bytes would turn the answer into a reset, and who still sends when we have closed does
    not read the answer.
    """
    with connection, contextlib.suppress(OSError):  # the client may have left
        connection.settimeout(seconds)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            connection.recv(2**16)
        connection.sendall(answer)


def _refusal(fault: ConfigError) -> bytes:
    problem = problem_of(NotServing(f"hotreload cannot start: {fault}", code=fault.code))
    headers = [*problem.raw_headers, (b"connection", b"close")]
    lines = [b"HTTP/1.1 503 Service Unavailable", *(b": ".join(header) for header in headers)]
    return b"\r\n".join([*lines, b"", bytes(problem.body)])
