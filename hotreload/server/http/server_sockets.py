"""The listening sockets: those that the daemon binds, those of systemd, and TLS on the TCP port.

systemd keeps its sockets open from one daemon to the next. If a daemon cannot serve a socket, it
answers the clients that wait there with the reason.
"""

import contextlib
import errno
import grp
import hashlib
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from hotreload.errors import AddressTaken, ConfigError, NotServing
from hotreload.facts.files import hold_lock
from hotreload.facts.holders import process_of, who_has
from hotreload.facts.names import LOOKING
from hotreload.server.http.problems import raw_answer
from hotreload.server.http.senders import peer_of

log = logging.getLogger("hotreload.server")

BACKLOG = 2048
"""Large, because asyncio's clients believe they are connected when a unix backlog is full."""


FIRST_DESCRIPTOR = 3
SYSTEMD_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
SYSTEMD_NAME = "http"
REQUEST_SECONDS = 0.5
"""Seconds in which refused clients may still send their request."""


def bind_unix(path: Path, mode: int = 0o660, group: str | int | None = None) -> socket.socket:
    """Listen on a unix socket; its mode and group are set before any client can connect.

    A stale socket is replaced. ConfigError if another process listens there, or if the file is no
    socket.
    """
    path = path.absolute()
    gid = group_id(group, "[server] group") if group is not None else None
    _make_folder(path.parent)
    try:
        with hold_lock(path.parent):  # no other daemon binds between our check and our bind
            _remove_stale(path)
            return _listen(path, mode, gid)
    except BlockingIOError:
        words = f"another hotreload is starting in {path.parent}; try again"
        raise AddressTaken(words) from None
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


def _remove_stale(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"[server] socket: {path} exists and is no socket; move it away")
    if (answerer := _owner_of(path)) is not None:
        raise AddressTaken(
            f"another hotreload answers on {path}{answerer}; stop it, or set another [server] "
            "socket"
        )
    path.unlink()


def _owner_of(path: Path) -> str | None:
    """Name the process that listens there, if the kernel knows it; None if none listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a socket with a full backlog answers at once, too
        code = probe.connect_ex(os.fspath(path))
        pid = peer_of(probe).pid if not code else 0
    if code in (errno.EACCES, errno.EPERM):
        raise ConfigError(f"[server] socket: {path} belongs to another user: {os.strerror(code)}")
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
        listener.listen(BACKLOG)  # no client can connect before this line, whatever the mode is
    except BaseException:
        listener.close()
        raise
    return listener


def systemd_sockets(
    environ: MutableMapping[str, str] = os.environ, *, first: int = FIRST_DESCRIPTOR
) -> list[socket.socket]:
    """Return the listening sockets that systemd passed to this process; there may be none.

    Child processes inherit neither the sockets nor the environment variables that name them.
    """
    pid, count, names = (environ.pop(name, "") for name in SYSTEMD_VARIABLES)
    if not pid.isdecimal() or int(pid) != os.getpid() or not count.isdecimal():
        return []  # systemd passed none, or passed them to another process
    named = names.split(":") if names else [SYSTEMD_NAME] * int(count)
    return [_checked_socket(first + index, name) for index, name in enumerate(named[: int(count)])]


def is_for_views(listener: socket.socket) -> bool:
    """True if the socket is the one for the view routes, which answer while the daemon starts."""
    name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    return isinstance(name, str) and name.endswith(LOOKING)  # an abstract name is bytes


def _checked_socket(descriptor: int, name: str) -> socket.socket:
    if name != SYSTEMD_NAME:
        raise ConfigError(
            f"systemd passes a socket called {name!r}; write FileDescriptorName={SYSTEMD_NAME} "
            "into its .socket unit"
        )
    try:
        os.set_inheritable(descriptor, False)
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise _bad_descriptor(descriptor, "it is no socket; use ListenStream=")
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise _bad_descriptor(descriptor, error.strerror or str(error)) from error
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise _bad_descriptor(descriptor, "it is not listening; use ListenStream= and Accept=no")
    return listener


def _bad_descriptor(descriptor: int, why: str) -> ConfigError:
    return ConfigError(f"descriptor {descriptor} that systemd passes cannot be served on: {why}")


def group_id(group: str | int, setting: str) -> int:
    """Return the number of a group; ConfigError names the setting if there is no such group."""
    if isinstance(group, int) or group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"{setting}: there is no group {group!r} on this machine") from None


def refuse_clients(listeners: Sequence[socket.socket], fault: ConfigError) -> None:
    """Answer 503 with the reason to all clients that wait in these sockets.

    systemd restarts the service for each connection that is left in its socket, even if the client
    is gone.
    """
    answer = raw_answer(NotServing(f"hotreload cannot start: {fault}", code=fault.code), {})
    until = time.monotonic() + REQUEST_SECONDS
    for listener in listeners:
        with contextlib.suppress(OSError):  # no client waits any more, or the socket is closed
            listener.setblocking(False)
            for _ in range(BACKLOG):
                connection, _ = listener.accept()
                _send_answer(connection, answer, max(0.0, until - time.monotonic()))


def _send_answer(connection: socket.socket, answer: bytes, seconds: float) -> None:
    """Send the answer once the request has come, or after this many seconds.

    Closing with unread bytes, or while the client still sends, would reset the connection: the
    client would not see the answer.
    """
    with connection, contextlib.suppress(OSError):  # the client may have left
        connection.settimeout(seconds)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            connection.recv(2**16)
        connection.sendall(answer)


# --- TLS ------------------------------------------------------------------------------------------

TLS = "[server] tls_cert, tls_key"
"""The settings that name the files, for messages."""


class TlsPair:
    """A certificate with its chain and its key; each new connection gets the last good pair."""

    def __init__(self, cert: Path, key: Path) -> None:
        """ConfigError if the files are no pair."""
        self._files = cert, key
        self._digest = self._read()
        self.context = self._last = self._load()
        """The server listens with it; every handshake goes on with the last pair."""
        self.context.sni_callback = self._choose

    def read_again(self) -> None:
        """Take what the files hold now; ConfigError if that is no pair, and the last one stays."""
        digest = self._read()
        if digest != self._digest:
            self._last, self._digest = self._load(), digest
            log.info("tls.changed", extra={"certificate": str(self._files[0])})

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: object) -> None:
        """Give a connection the last pair; OpenSSL calls it early in each handshake."""
        connection.context = self._last

    def _read(self) -> bytes:
        digest = hashlib.sha256()
        for file in self._files:
            try:
                digest.update(file.read_bytes())
            except OSError as error:
                raise ConfigError(f"{TLS}: {file} cannot be read: {error.strerror}") from None
        return digest.digest()

    def _load(self) -> ssl.SSLContext:
        cert, key = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(cert, key, password=self._refuse_password)
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror
            words = (
                f"{key} is not the key of {cert}"
                if why == "KEY_VALUES_MISMATCH"
                else f"{cert} and {key} are no certificate and key in PEM ({why})"
            )
            raise ConfigError(f"{TLS}: {words}") from None
        return context

    def _refuse_password(self) -> str:
        """Raise ConfigError: OpenSSL would ask for the password on the terminal."""
        raise ConfigError(f"{TLS}: {self._files[1]} is encrypted: write it without a password")
