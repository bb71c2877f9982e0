"""Sockets that systemd opened for us, and keeps open from one of us to the next."""

import os
import socket
import stat
from collections.abc import MutableMapping

from hotreload.errors import ConfigError
from hotreload.types import LOOKING

FIRST = 3
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
NAME = "http"


def take_over(
    environ: MutableMapping[str, str] = os.environ, *, first: int = FIRST
) -> list[socket.socket]:
    """Take the listening sockets that systemd passed to this process; there may be none.

    Whoever we start inherits neither the sockets nor the variables that tell of them.
    """
    pid, count, names = (environ.pop(name, "") for name in VARIABLES)
    if not pid.isdecimal() or int(pid) != os.getpid() or not count.isdecimal():
        return []  # none, or meant for another process
    named = names.split(":") if names else [NAME] * int(count)
    return [_taken(first + index, name) for index, name in enumerate(named[: int(count)])]


def is_for_looking(listener: socket.socket) -> bool:
    """True if it is the socket for those who only look while the daemon starts."""
    name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    return isinstance(name, str) and name.endswith(LOOKING)  # an abstract one's is bytes


def _taken(descriptor: int, name: str) -> socket.socket:
    if name != NAME:
        raise ConfigError(
            f"systemd passes a socket called {name!r}; write FileDescriptorName={NAME} "
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
