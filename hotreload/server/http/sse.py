"""Server-sent events, written as the client reads them."""

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope, Send

from hotreload.server.http.problems import to_json

EVENT_STREAM = (b"content-type", b"text/event-stream")
"""The header of such an answer."""


class NamedEvent(dict[str, Any]):
    """A value that says on a line of its own, too, which `type` of event it is."""


class EventWriter:
    """One answer as `text/event-stream`; its first write starts it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._write_at_once = scope.get("extensions", {}).get("write_at_once", _cannot)
        self._headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        self.is_started = False

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Send these too; only before the first write."""
        self._headers |= headers

    async def write(self, value: Any) -> None:
        """Send a value as one event."""
        name = f"event: {value['type']}\n".encode() if isinstance(value, NamedEvent) else b""
        await self._chunk(name + b"data: " + to_json(value) + b"\n\n")

    async def comment(self, text: str) -> None:
        """Send what every client ignores, to show that we are there."""
        await self._chunk(f": {text}\n\n".encode())

    async def done(self) -> None:
        """Say that nothing follows, as the engine's own server and OpenAI's do."""
        await self._chunk(b"data: [DONE]\n\n", more=False)

    async def end(self) -> None:
        """End the answer."""
        await self._chunk(b"", more=False)

    async def _chunk(self, chunk: bytes, *, more: bool = True) -> None:
        await self._start()
        if more and self._write_at_once(chunk):
            return
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _start(self) -> None:
        if self.is_started:
            return
        self.is_started = True
        headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _cannot(piece: bytes) -> bool:
    """Leave it to who sends: there is no connection of ours."""
    return False
