"""The names in the file system by which clients find our unix sockets: watched, and made again.

When such a name is removed nobody can connect, and the socket itself never notices.
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
from hotreload.troubles import SOCKET_GONE, Trouble

DOOR_LOOK_SECONDS = 2.0
"""The longest time that a name is gone before it is noticed."""

SEE_TO_IT = "see to what it names; hotreload tries again every few seconds"
RESTART_THE_UNIT = (
    "systemctl restart hotreload.socket, or the .socket unit that holds it: the service is started "
    "anew with it, and requests under way are answered first"
)


class Door:
    """The name of one listening socket, as it was when that was bound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._was = _seen(path)
        self._folder = _seen(path.parent)

    @property
    def is_there(self) -> bool:
        """True if clients that connect by this name still come to that socket."""
        now = _seen(self.path)
        return bool(now and self._was and os.path.samestat(now, self._was))

    def bind_anew(self) -> socket.socket:
        """Listen by this name again, with its mode and group; ConfigError says what is in the way.

        A live socket of another's, or a file that is no socket, stays as it is.
        """
        assert self._was is not None, "we bound it"
        self._make_folder()
        listener = bind_unix(self.path, stat.S_IMODE(self._was.st_mode), self._was.st_gid)
        self._was = _seen(self.path)
        return listener

    def _make_folder(self) -> None:
        """Make it as it was, if it is gone: whom it kept out stays out."""
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
        """Remove the name, unless it is gone or leads to another socket."""
        with contextlib.suppress(OSError):
            found = os.lstat(self.path)
            if self._was and os.path.samestat(found, self._was):
                os.unlink(self.path)


class Doors:
    """Every name by which clients find us; those that are ours are bound again when they are gone.

    systemd's cannot be: what is wrong with them is told.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._trouble = Trouble(SOCKET_GONE, publish)
        self._doors: list[Door] = []
        self._are_ours = False
        self._asked = asyncio.Event()

    def take(self, listeners: Iterable[socket.socket], *, ours: bool) -> None:
        """Look after the names of these sockets; `ours` are those that we bound."""
        self._doors = [Door(Path(name)) for name in map(_name_of, listeners) if name]
        self._are_ours = ours

    def look_again(self) -> None:
        """Look now."""
        self._asked.set()

    async def watch(self, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Look every few seconds until we leave; `serve` takes what was bound again."""
        while self._doors:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DOOR_LOOK_SECONDS):
                    await self._asked.wait()
            self._asked.clear()
            for door in self._doors:
                if (listener := self._opened_anew(door)) is not None:
                    await serve(listener)

    def _opened_anew(self, door: Door) -> socket.socket | None:
        """Bind it anew if it is gone and ours, and tell how it stands."""
        fault, todo, listener = None, "", None
        if not door.is_there and self._are_ours:
            try:
                listener = door.bind_anew()
            except ConfigError as error:
                fault, todo = f"nobody can connect any more: {error}", SEE_TO_IT
        elif not door.is_there:
            fault = f"nobody can connect any more: {door.path}, which systemd opened, was removed"
            todo = RESTART_THE_UNIT
        self._trouble.now(fault, todo, of=str(door.path))
        if listener is not None:
            self._publish(SocketBoundAnew(str(door.path)))
        return listener

    def leave(self) -> None:
        """Remove the names that are ours, and look after none any more."""
        doors, self._doors = self._doors, []
        for door in doors if self._are_ours else ():
            door.remove()
        self._asked.set()


def _seen(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _name_of(listener: socket.socket) -> str:
    """Its path; an empty string where nothing in the file system leads to it."""
    name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    return name if isinstance(name, str) else ""  # an abstract one's is bytes
