"""Connections that go from one process to another, with what was read of them and not heeded.

The socket is the same one: nobody who is connected notices, and the kernel names the same peer.
"""

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable

LARGEST_INLINE = 2**15
"""Bytes that go along in the message itself; more go in a file of memory."""
DESCRIPTORS = 2

Taken = Callable[[socket.socket, bytes], None]


class Handing:
    """One end of the way that connections go, in both directions."""

    def __init__(self, end: socket.socket, taken: Taken) -> None:
        """`taken` is called with each connection that comes, and the bytes that came on it."""
        self._end = end
        self._taken = taken
        end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Connections that go as soon as somebody takes them."""
        self._loop.add_reader(end.fileno(), self._receive)

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give away a connection; False if nobody takes it now. The caller closes its own."""
        beside = None
        try:
            if len(data) > LARGEST_INLINE:
                beside, data = _in_memory(data), b""
            descriptors = [descriptor] if beside is None else [descriptor, beside]
            rights = array.array("i", descriptors).tobytes()
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            # One byte before the data: an empty message would look like the end.
            self._end.sendmsg([b"+", data], control)
        except OSError:  # it does not read, or has ended
            return False
        finally:
            if beside is not None:
                os.close(beside)
        return True

    def hand_over_surely(self, descriptor: int, data: bytes) -> None:
        """Give away a connection, now or as soon as somebody takes it; then this one is closed."""
        self._waiting.append((descriptor, data))
        self._send_waiting()

    def close(self) -> None:
        """Take and give no more."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()
        for descriptor, _ in self._waiting:
            os.close(descriptor)
        self._waiting.clear()

    def _send_waiting(self) -> None:
        while self._waiting:
            descriptor, data = self._waiting[0]
            if not self.hand_over(descriptor, data):
                self._loop.add_writer(self._end.fileno(), self._send_waiting)
                return
            self._waiting.popleft()
            os.close(descriptor)
        self._loop.remove_writer(self._end.fileno())

    def _receive(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._end, LARGEST_INLINE + 1, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._loop.remove_reader(self._end.fileno())
            return
        connection, *beside = descriptors
        data = message[1:]
        for memory in beside:
            data = _read(memory)
        self._taken(socket.socket(fileno=connection), data)


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("hotreload-request")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
