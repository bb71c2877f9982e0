"""Messages between the engine's process and a worker, over one unix socket; never a pickle."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

Message = list[Any]
"""A word that says what it is about, and its parts."""
OnMessage = Callable[[Message], None]

LARGEST = 2**30
"""Bytes of a message; the bodies under way are bounded, and a message holds one of them at most."""
HIGH_WATER = 2**20
"""Bytes that wait to be read by the other end, beyond which answers wait, too."""
BIG_NUMBER = 1
"""The kind of a number that has more than 64 bits, which clients may send and nobody uses."""


class Wire(asyncio.Protocol):
    """One end. What is told in one turn of the loop is written at once."""

    def __init__(self, on_message: OnMessage, on_gone: Callable[[], None]) -> None:
        """`on_message` is called with each message, `on_gone` once, when no more come."""
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
        """Begin; what was told before is written now."""
        self._transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that no more come."""
        self.is_over = True
        self._may_write.set()
        self._on_gone()

    def data_received(self, data: bytes) -> None:
        """Hear each message that is whole."""
        self._unpacker.feed(data)
        for message in self._unpacker:
            self._on_message(message)

    def pause_writing(self) -> None:
        """The other end is behind."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It has read."""
        self._may_write.set()

    def send(self, *message: Any) -> None:
        """Tell the other end; nothing once it is on_gone."""
        if self.is_over:
            return
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten.append(self._packer.pack(message))

    async def drain(self) -> None:
        """Wait until the other end is not far behind, or on_gone."""
        await self._may_write.wait()

    def close(self) -> None:
        """End it, with what was told and is not read."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        if self._unwritten and self._transport is not None and not self.is_over:
            self._transport.write(b"".join(self._unwritten))
            self._unwritten.clear()


def _pack_other(value: Any) -> Any:
    """Pack what msgpack has no kind for."""
    if isinstance(value, int):
        return msgpack.ExtType(BIG_NUMBER, str(value).encode())
    if isinstance(value, frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no message")


def _unpack_other(kind: int, data: bytes) -> Any:
    assert kind == BIG_NUMBER
    return int(data)
