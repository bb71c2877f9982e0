"""Messages between the engine's process and a worker, over one unix socket; never a pickle."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

Message = list[Any]
"""The kind of the message, and its parts."""
OnMessage = Callable[[Message], None]

LARGEST = 2**30
"""The most bytes of a message; one holds at most one request's body, and bodies are limited."""
HIGH_WATER = 2**20
"""Unread bytes above which answers wait for the other end to read."""
BIG_NUMBER = 1
"""The msgpack type of an integer of more than 64 bits, which a client may send."""


class Wire(asyncio.Protocol):
    """One end of the connection. Messages sent in one turn of the loop are written together."""

    def __init__(self, on_message: OnMessage, on_gone: Callable[[], None]) -> None:
        """`on_message` gets each message; `on_gone` is called once the connection is closed."""
        self._on_message = on_message
        self._on_gone = on_gone
        self._packer = msgpack.Packer(default=_pack_other, unicode_errors="surrogatepass")
        self._unpacker = msgpack.Unpacker(
            ext_hook=_unpack_other,
            unicode_errors="surrogatepass",
            strict_map_key=False,
            max_buffer_size=LARGEST,
        )
        self._unwritten: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Write the messages that were sent before the connection was made."""
        self._transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that no more messages come."""
        self.is_over = True
        self._may_write.set()
        self._on_gone()

    def data_received(self, data: bytes) -> None:
        """Handle each complete message."""
        self._unpacker.feed(data)
        for message in self._unpacker:
            self._on_message(message)

    def pause_writing(self) -> None:
        """Make `drain` wait: the other end has much to read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let `drain` go on: the other end has read."""
        self._may_write.set()

    def send(self, *message: Any) -> None:
        """Queue a message; drop it if the peer is gone."""
        if self.is_over:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten.append(self._packer.pack(message))

    async def drain(self) -> None:
        """Wait until the other end has read enough, or is gone."""
        await self._may_write.wait()

    def close(self) -> None:
        """Close the connection and drop unread messages."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        if self._unwritten and self._transport is not None and not self.is_over:
            self._transport.write(b"".join(self._unwritten))
            self._unwritten.clear()


def _pack_other(value: Any) -> Any:
    """Pack a value that msgpack has no type for."""
    if isinstance(value, int):
        return msgpack.ExtType(BIG_NUMBER, str(value).encode())
    if isinstance(value, frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no message")


def _unpack_other(kind: int, data: bytes) -> Any:
    assert kind == BIG_NUMBER
    return int(data)
