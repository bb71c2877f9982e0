"""Messages between the engine's process and a worker, over one unix socket; never a pickle."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

Message = list[Any]
"""A word that says what it is about, and its parts."""
Heard = Callable[[Message], None]

LARGEST = 2**30
"""Bytes of a message; the bodies under way are bounded, and a message holds one of them at most."""
HIGH_WATER = 2**20
"""Bytes that wait to be read by the other end, beyond which answers wait, too."""
BIG_NUMBER = 1
"""The kind of a number that has more than 64 bits, which clients may send and nobody uses."""


class Wire(asyncio.Protocol):
    """One end. What is told in one turn of the loop is written at once."""

    def __init__(self, heard: Heard, gone: Callable[[], None]) -> None:
        """`heard` is called with each message, `gone` once, when no more come."""
        self._heard = heard
        self._gone = gone
        self._packer = msgpack.Packer(default=_packed, unicode_errors="surrogatepass")
        self._unpacker = msgpack.Unpacker(
            ext_hook=_unpacked,
            unicode_errors="surrogatepass",
            strict_map_key=False,
            max_buffer_size=LARGEST,
        )
        self._told: list[bytes] = []
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
        self._gone()

    def data_received(self, data: bytes) -> None:
        """Hear each message that is whole."""
        self._unpacker.feed(data)
        for message in self._unpacker:
            self._heard(message)

    def pause_writing(self) -> None:
        """The other end is behind."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It has read."""
        self._may_write.set()

    def tell(self, *message: Any) -> None:
        """Tell the other end; nothing once it is gone."""
        if self.is_over:
            return
        if not self._told:
            asyncio.get_running_loop().call_soon(self._write)
        self._told.append(self._packer.pack(message))

    async def caught_up(self) -> None:
        """Wait until the other end is not far behind, or gone."""
        await self._may_write.wait()

    def close(self) -> None:
        """End it, with what was told and is not read."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self) -> None:
        if self._told and self._transport is not None and not self.is_over:
            self._transport.write(b"".join(self._told))
            self._told.clear()


def _packed(value: Any) -> Any:
    """Pack what msgpack has no kind for."""
    if isinstance(value, int):
        return msgpack.ExtType(BIG_NUMBER, str(value).encode())
    if isinstance(value, frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no message")


def _unpacked(kind: int, data: bytes) -> Any:
    assert kind == BIG_NUMBER
    return int(data)
