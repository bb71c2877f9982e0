"""The paths of our unix sockets: watched, and bound again after they were removed.

Without its path no client can connect, and the listening socket gets no notice of the removal.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from hotreload.errors import ConfigError
from hotreload.events import Publish, SocketBoundAnew
from hotreload.server.http.server_sockets import bind_unix
from hotreload.threads import wait_at_most
from hotreload.troubles import SOCKET_GONE, Trouble

PATH_CHECK_SECONDS = 2.0
"""Seconds between two checks of the paths."""

CLEAR_THE_PATH = "mend what the message names; hotreload tries again every few seconds"
RESTART_THE_UNIT = (
    "systemctl restart hotreload.socket, or the .socket unit that holds it: the service is started "
    "anew with it, and requests under way are answered first"
)


class SocketPath:
    """The path of one listening socket, and its file as it was when the socket was bound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._was = _stat_of(path)
        self._folder = _stat_of(path.parent)

    @property
    def is_intact(self) -> bool:
        """True if the path still leads to that socket."""
        now = _stat_of(self.path)
        return bool(now and self._was and os.path.samestat(now, self._was))

    def bind_again(self) -> socket.socket:
        """Listen on the path again, with its former mode and group; return the socket.

        ConfigError where another process listens there, or where a file lies there that is no
        socket. Neither is touched.
        """
        assert self._was is not None, "the path was bound before"
        self._make_folder()
        listener = bind_unix(self.path, stat.S_IMODE(self._was.st_mode), self._was.st_gid)
        self._was = _stat_of(self.path)
        return listener

    def _make_folder(self) -> None:
        """Create the folder again with its former owner and mode, if it is gone.

        Users that the folder kept out stay out.
        """
        folder, was = self.path.parent, self._folder
        if was is None or folder.exists():
            return
        try:
            folder.mkdir(mode=0o700)
            os.chown(folder, was.st_uid, was.st_gid)
            folder.chmod(stat.S_IMODE(was.st_mode))
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise ConfigError(
                f"its folder {folder} is gone and cannot be made as it was ({error.strerror})"
            ) from error

    def remove(self) -> None:
        """Unlink the path, unless it is gone or leads to another socket."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.path)
            if self._was and os.path.samestat(found, self._was):
                os.unlink(self.path)


class SocketPaths:
    """The paths of all listening sockets; those that this process bound are bound again when gone.

    A path of systemd's cannot be bound again here: its loss is reported as a trouble.
    """

    def __init__(self, publish: Publish = lambda event: None) -> None:
        self._publish = publish
        self._trouble = Trouble(SOCKET_GONE, publish)
        self._paths: list[SocketPath] = []
        self._are_ours = False
        self._check_asked = asyncio.Event()

    def take(self, listeners: Iterable[socket.socket], *, ours: bool) -> None:
        """Watch the paths of these sockets; `ours` says that this process bound them."""
        self._paths = [SocketPath(Path(name)) for name in map(_path_of, listeners) if name]
        self._are_ours = ours

    def check_now(self) -> None:
        """Have `watch` check every path now."""
        self._check_asked.set()

    async def watch(self, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Check every path every few seconds until `leave`; `serve` gets each new socket."""
        while self._paths:
            await wait_at_most(PATH_CHECK_SECONDS, self._check_asked)
            self._check_asked.clear()
            for socket_path in self._paths:
                if (listener := self._bind_if_gone(socket_path)) is not None:
                    await serve(listener)

    def _bind_if_gone(self, socket_path: SocketPath) -> socket.socket | None:
        """Bind the path again if it is gone and ours; report or clear its trouble."""
        fault, todo, listener = None, "", None
        if not socket_path.is_intact and self._are_ours:
            try:
                listener = socket_path.bind_again()
            except ConfigError as error:
                fault, todo = f"no client can connect: {error}", CLEAR_THE_PATH
        elif not socket_path.is_intact:
            fault = f"no client can connect: {socket_path.path}, which systemd opened, was removed"
            todo = RESTART_THE_UNIT
        self._trouble.set(fault, todo, of=str(socket_path.path))
        if listener is not None:
            self._publish(SocketBoundAnew(str(socket_path.path)))
        return listener

    def leave(self) -> None:
        """Unlink the paths that are ours, and end `watch`."""
        paths, self._paths = self._paths, []
        for socket_path in paths if self._are_ours else ():
            socket_path.remove()
        self._check_asked.set()


def _stat_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _path_of(listener: socket.socket) -> str:
    """Return the path of a socket; empty for TCP and for an abstract name."""
    name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    return name if isinstance(name, str) else ""  # an abstract name is bytes
