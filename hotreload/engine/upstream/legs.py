"""Counts the messages between threads, to see whether the detokenizer or our loop hangs.

A part is done with a message when it asks for the next one, and idle while it waits for that.
"""

from collections.abc import Callable
from typing import Any


class Leg:
    """The messages to one part: how many were sent, and how many it is done with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sent: list[Count] = []
        self._asked = Count()

    def begins_at(self, *sockets: Any) -> None:
        """Count what is sent through these sockets, each by one thread. Ranks above 0 have none."""
        import zmq

        for socket in sockets:
            if isinstance(socket, zmq.Socket):
                self._sent.append(Count())
                socket.send_pyobj = self._sent[-1].at(socket.send_pyobj)  # type: ignore[method-assign]

    def ends_at(self, socket: Any) -> None:
        """Count what the part asks for, from its first message on."""
        socket.recv_pyobj = self._asked.at(socket.recv_pyobj)

    def progress(self) -> tuple[bool, int]:
        """Say if the part has something to do, and how much it has done: so a hang shows."""
        done = max(0, self._asked.value - 1)
        return sum(count.value for count in self._sent) > done, done


class Count:
    """Counts the calls of something, by one thread."""

    def __init__(self) -> None:
        self.value = 0

    def at[**P, T](self, call: Callable[P, T]) -> Callable[P, T]:
        """The same call, counted as it begins: at its end the receiver may already have acted."""

        def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            self.value += 1
            return call(*args, **kwargs)

        return counted
