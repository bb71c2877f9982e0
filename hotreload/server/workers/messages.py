"""The messages between the engine's process and a worker, over one unix socket; never a pickle.

A message holds plain data, values of a few classes, and errors.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

import msgpack

from hotreload import errors
from hotreload.core.way_in.admission import Origin
from hotreload.core.way_in.gate import ExactWeights
from hotreload.errors import HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.http.problems import Refused
from hotreload.server.model import EncodedBy, EncoderMismatch, ModelRequest
from hotreload.types import Generation, Revision

Message = list[Any]
"""The kind of the message, and its parts."""

LARGEST = 2**30
"""The most bytes of a message; one holds at most one request's body, and bodies are limited."""
HIGH_WATER = 2**20
"""Unread bytes above which answers wait for the other end to read."""


class MessageKind(StrEnum):
    """The kind of a message, which is its first part."""

    # From a worker to the engine's process:
    ASK = "ask"
    """The name that messages about an answer will have, and the request to the model.

    Its prompts are texts, or ids with the name of the encoder that made them.
    """
    LEAVE = "leave"
    """The client of this answer has left: abort the answer."""
    FINISHED = "finished"
    """A request of this route ended with this code after this many seconds."""
    FIRST_TOKEN = "first_token"
    """A stream sent its first token after this many seconds."""
    ALIVE = "alive"
    """The worker has handled all messages up to the ping of this number."""

    # From the engine's process to a worker:
    BEGUN = "begun"
    """The answer of this name begins; the generation that answers."""
    STEP = "step"
    """The new part of an answer: its name, the index of the answer, and the step."""
    WHOLE = "whole"
    """An answer so far: its name, the index of the answer, and the whole piece."""
    BATCH = "batch"
    """All answers to a batch at once."""
    OVER = "over"
    """The answer of this name is complete."""
    FAILED = "failed"
    """The answer of this name failed, with this error."""
    LIVE = "live"
    """The generation that is live now."""
    SETTINGS = "settings"
    """The limits, keys and log settings from now on."""
    ENCODER = "encoder"
    """The encoder for prompts from now on: its name and its data; empty for none."""
    PING = "ping"
    MAKE_ROOM = "make_room"
    """Close the oldest idle connection, on a unix socket or over TCP."""
    SHUT_DOWN = "shut_down"
    """Answer all requests, and end."""


BIG_NUMBER, VALUE, ERROR = 1, 2, 3
"""The msgpack types of an integer of more than 64 bits, which a client may send, of a value of one
of these classes, and of an error."""
VALUES: Mapping[str, type] = {
    each.__name__: each
    for each in (EncodedBy, ExactWeights, Generation, ModelRequest, Origin, Revision)
}
ERRORS: Mapping[str, type[HotReloadError]] = {
    each.__name__: each
    for each in (*vars(errors).values(), EncoderMismatch, Refused)
    if isinstance(each, type) and issubclass(each, HotReloadError)
}
MORE = ("param", "retry_after", "status", "headers")
"""Attributes that some of these errors have beside their message."""


def error_fields(error: HotReloadError) -> Fields:
    """Return an error's fields; for a class that is not in ERRORS they have its nearest base."""
    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS)
    more = {name: getattr(error, name) for name in MORE if hasattr(error, name)}
    return {
        "kind": kind,
        "words": str(error),
        "code": error.code,
        "findings": error.findings,
        **more,
    }


def error_from(said: Fields) -> HotReloadError:
    """Build the error from its fields."""
    kind = ERRORS[said["kind"]]
    error = kind.__new__(kind)
    HotReloadError.__init__(error, said["words"], code=said["code"], findings=said["findings"])
    for name in MORE:
        if name in said:
            setattr(error, name, said[name])
    return error


def _pack_other(value: Any) -> Any:
    """Pack a value that msgpack has no type for; of a generation no leaves, which no worker needs.

    A time goes as it is: the processes of one machine share the monotonic clock.
    """
    if isinstance(value, int):
        return msgpack.ExtType(BIG_NUMBER, str(value).encode())
    if isinstance(value, frozenset | set):
        return list(value)
    if isinstance(value, HotReloadError):
        return msgpack.ExtType(ERROR, msgpack.packb(error_fields(value), **PACKED))
    if isinstance(value, Generation):
        value = replace(value, leaves={})
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return msgpack.ExtType(VALUE, msgpack.packb([type(value).__name__, parts], **PACKED))


def _unpack_other(kind: int, data: bytes) -> Any:
    """Build such a value; None for one that no process of ours sends."""
    try:
        if kind == BIG_NUMBER:
            return int(data)
        content = msgpack.unpackb(data, **UNPACKED)
        return error_from(content) if kind == ERROR else VALUES[content[0]](**content[1])
    except Exception:  # a worker that sends nonsense loses the answer to it, and nothing else
        return None


PACKED: Fields = {"default": _pack_other, "unicode_errors": "surrogatepass"}
UNPACKED: Fields = {
    "ext_hook": _unpack_other,
    "unicode_errors": "surrogatepass",
    "strict_map_key": False,
}


class Wire(asyncio.Protocol):
    """One end of the connection. Messages sent in one turn of the loop are written together."""

    def __init__(self, on_message: Callable[[Message], None], on_gone: Callable[[], None]) -> None:
        """`on_message` gets each message; `on_gone` is called once the connection is closed."""
        self._on_message = on_message
        self._on_gone = on_gone
        self._packer = msgpack.Packer(**PACKED)
        self._unpacker = msgpack.Unpacker(max_buffer_size=LARGEST, **UNPACKED)
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
