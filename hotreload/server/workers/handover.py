"""Handover of connections to another process, with the bytes that were read and not answered.

The client's socket stays the same: the client notices nothing, and the kernel names the same peer.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

LARGEST_INLINE = 2**15
"""Bytes that are sent in the message itself; more are sent in a memory file."""
DESCRIPTORS = 2
SEND_AGAIN_SECONDS = 0.1
"""Seconds until a waiting handover is retried when no event announces that it can go on."""

log = logging.getLogger("hotreload.server")

OnConnection = Callable[[socket.socket, bytes], None]


class HandoverChannel:
    """One end of a channel that hands connections over in both directions."""

    def __init__(
        self,
        end: socket.socket,
        on_connection: OnConnection,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_connection` gets each received connection and the unanswered bytes.

        `on_lost` is called when a connection was closed for want of a free descriptor.
        """
        self._end = end
        self._on_connection = on_connection
        self._on_lost = on_lost
        end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Connections that wait until the other process can receive them."""
        self._loop.add_reader(end.fileno(), self._receive)

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Send a connection; False if the other process cannot receive it now.

        The caller closes its own descriptor.
        """
        try:
            self._send(descriptor, data)
        except OSError:  # the process does not read, or has ended, or no descriptor is left
            return False
        return True

    def queue_handover(self, descriptor: int, data: bytes) -> None:
        """Send a connection, now or as soon as the other process can receive it.

        The caller closes its own descriptor. OSError if the connection must wait and there is no
        descriptor left to keep it.
        """
        if self._waiting or not self.hand_over(descriptor, data):
            self._waiting.append((os.dup(descriptor), data))
            self._send_waiting()

    def close(self) -> None:
        """Close the channel and all connections that wait."""
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
            # One byte precedes the data: an empty message would mean the end of the channel.
            socket.send_fds(self._end, [b"+", data], descriptors)
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
        if flags & socket.MSG_CTRUNC:  # no descriptor was free: the kernel closed the connection
            log.warning("server.no_descriptor_left", extra={"error": "a connection was closed"})
            for descriptor in descriptors:
                os.close(descriptor)
            self._on_lost()
            return
        connection, *beside = descriptors
        data = message[1:]
        for memory in beside:
            with os.fdopen(memory, "rb") as file:
                file.seek(0)
                data = file.read()
        self._on_connection(socket.socket(fileno=connection), data)
