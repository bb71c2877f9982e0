"""The sockets between upstream's threads: in a folder of this user alone, closed at the end.

The sockets carry pickles: a process that connects to one can run code as the daemon. Upstream
makes them in the temporary folder, where only the umask protects them.
"""

import os
import shutil
import tempfile
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError
from hotreload.facts import files
from hotreload.facts.names import LONGEST_SOCKET_PATH

FOLDER_PREFIX = "hotreload-ipc-"
_NAMES = len("/xxxxxxxx/tmpxxxxxxxx")
_LONGEST_ROOT = LONGEST_SOCKET_PATH - len(FOLDER_PREFIX) - _NAMES
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")


class SocketFolder:
    """A folder of mode 0700, whatever the umask is; locked until it is removed or we end."""

    def __init__(self) -> None:
        reasons = []
        for place in _places():
            try:
                _clear_leftovers(place)
                self.path, self._lock = _make_in(place)
                return
            except OSError as fault:
                reasons.append(f"{place}: {fault.strerror or fault}")
        raise ConfigError(
            f"there is no folder for the engine's sockets ({'; '.join(reasons)}): set TMPDIR to a "
            f"writable folder whose path has {_LONGEST_ROOT} bytes at most"
        )

    @contextmanager
    def hold_sockets(self, addresses: types.ModuleType) -> Iterator[None]:
        """Have the module that names the sockets put them into this folder in this context."""
        original = addresses.tempfile
        named = partial(tempfile.NamedTemporaryFile, dir=self.path)
        addresses.tempfile = types.SimpleNamespace(NamedTemporaryFile=named)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            addresses.tempfile = original  # type: ignore[attr-defined]

    def check_holds(self, port_args: Any) -> None:
        """Raise ConfigError if this sglang-jax has put a socket elsewhere all the same."""
        for address in vars(port_args).values():
            is_file = isinstance(address, str) and address.startswith("ipc://")
            if is_file and not address.startswith(f"ipc://{self.path}/"):
                raise ConfigError(
                    f"this sglang-jax opens {address}, through which others could run code as "
                    "us: install a supported version"
                )

    def remove(self) -> None:
        """Remove the folder with every socket in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _places() -> list[str]:
    """List places for the folder: first what TMPDIR says; only paths that are short enough."""
    with suppress(OSError):  # there is no temporary folder at all
        return _short([tempfile.gettempdir(), *_OTHERS])
    return list(_OTHERS)


def _short(places: list[str]) -> list[str]:
    return list(
        dict.fromkeys(place for place in places if len(os.fsencode(place)) <= _LONGEST_ROOT)
    )


def _make_in(place: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=place))
        path.chmod(0o700)  # a umask can take rights even from us
        lock = _open(path)
        files.lock(lock, wait=True)
        if path.is_dir():
            return path, lock
        os.close(lock)  # another daemon cleared the folder away before it was locked


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _clear_leftovers(place: str) -> None:
    """Remove the folders of killed daemons: no process holds the lock of such a folder."""
    for left in Path(place).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError), ExitStack() as opened:
            lock = _open(left)
            opened.callback(os.close, lock)
            files.lock(lock)
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)


def close_sockets(*owners: Any) -> None:
    """Close every socket that these owners hold, and the sockets' contexts."""
    import zmq

    sockets = [
        value for owner in owners for value in _attributes(owner) if isinstance(value, zmq.Socket)
    ]
    for socket in sockets:
        socket.close(linger=0)
    for context in {socket.context for socket in sockets}:
        context.destroy(linger=0)


def _attributes(owner: Any) -> list[Any]:
    return list(vars(owner).values()) if owner is not None else []
