"""Tells those who wait in a socket that nobody will answer them, and why."""

import contextlib
import socket
import time
from collections.abc import Sequence

from hotreload.errors import ConfigError, NotServing
from hotreload.server.binding import BACKLOG
from hotreload.server.problems import problem_of

REQUEST_SECONDS = 0.5
"""Seconds in which those who are turned away may still send what they ask."""


def turn_away(listeners: Sequence[socket.socket], fault: ConfigError) -> None:
    """Answer 503, and why, to all who wait in these sockets, which nobody will serve.

    systemd starts the service anew for each connection that is left in a socket of its own, even
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
