"""Connections that go from one process to another, with what was read of them and not heeded.

The socket is the same one: nobody who is connected notices, and the kernel names the same peer.
"""

import array
import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

LARGEST_INLINE = 2**15
"""Bytes that go along in the message itself; more go in a file of memory."""
DESCRIPTORS = 2
SEND_AGAIN_SECONDS = 0.1
"""Seconds until a connection that waits is tried again, where no event says when."""

log = logging.getLogger("hotreload.server")

OnConnection = Callable[[socket.socket, bytes], None]


class HandoverChannel:
    """One end of the way that connections go, in both directions."""

    def __init__(
        self,
        end: socket.socket,
        on_connection: OnConnection,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_connection` is called with each connection that comes, and the bytes that came on it.

        `on_lost` is called for one that this process has no descriptor for: it is closed.
        """
        self._end = end
        self._on_connection = on_connection
        self._on_lost = on_lost
        end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Connections that go as soon as somebody takes them."""
        self._loop.add_reader(end.fileno(), self._receive)

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give away a connection; False if nobody takes it now. The caller closes its own."""
        try:
            self._send(descriptor, data)
        except OSError:  # it does not read, or has ended, or a descriptor is wanting
            return False
        return True

    def queue_handover(self, descriptor: int, data: bytes) -> None:
        """Give away a connection, now or as soon as somebody takes it. The caller closes its own.

        OSError where it would wait, and there is no descriptor for that.
        """
        if self._waiting or not self.hand_over(descriptor, data):
            self._waiting.append((os.dup(descriptor), data))
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
            try:
                self._send(descriptor, data)
            except BlockingIOError:
                self._loop.add_writer(self._end.fileno(), self._send_waiting)
                return
            except OSError:
                self._loop.remove_writer(self._end.fileno())
                self._loop.call_later(SEND_AGAIN_SECONDS, self._send_waiting)
                return
            self._waiting.popleft()
            os.close(descriptor)
        if self._end.fileno() >= 0:
            self._loop.remove_writer(self._end.fileno())

    def _send(self, descriptor: int, data: bytes) -> None:
        descriptors = [descriptor]
        try:
            if len(data) > LARGEST_INLINE:
                descriptors.append(beside := os.memfd_create("hotreload-request"))
                with open(beside, "wb", closefd=False) as file:
                    file.write(data)
                data = b""
            rights = array.array("i", descriptors).tobytes()
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            # One byte before the data: an empty message would look like the end.
            self._end.sendmsg([b"+", data], control)
        finally:
            for beside in descriptors[1:]:
                os.close(beside)

    def _receive(self) -> None:
        try:
            message, descriptors, flags, _ = socket.recv_fds(
                self._end, LARGEST_INLINE + 1, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            message, descriptors, flags = b"", [], 0
        if not message:
            self._loop.remove_reader(self._end.fileno())
            return
        if flags & socket.MSG_CTRUNC:  # the kernel has closed what there was no descriptor for
            log.warning("server.no_descriptor_left", extra={"error": "a connection was closed"})
            for descriptor in descriptors:
                os.close(descriptor)
            self._on_lost()
            return
        connection, *beside = descriptors
        data = message[1:]
        for memory in beside:
            data = _read(memory)
        self._on_connection(socket.socket(fileno=connection), data)


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
