"""Binds the sockets that we listen on."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from hotreload.errors import ConfigError
from hotreload.files import locked
from hotreload.server.groups import group_id

BACKLOG = 2048
"""Large, because asyncio's clients believe they are connected when a unix backlog is full."""


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
    try:
        with locked(folder):
            yield
    except BlockingIOError:
        raise ConfigError(f"another hotreload is starting in {folder}; try again") from None


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
        probe.setblocking(False)  # one that is full answers too, and says so at once
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
