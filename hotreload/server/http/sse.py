"""The writer of server-sent events."""

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope, Send

from hotreload.server.http.problems import to_json

EVENT_STREAM = (b"content-type", b"text/event-stream")
"""The Content-Type header of an event stream."""


class NamedEvent(dict[str, Any]):
    """A value that is sent with an `event:` line, which repeats its `type`."""


class EventWriter:
    """Writes one answer as `text/event-stream`; the first write sends the headers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._write_at_once = scope.get("extensions", {}).get("write_at_once", lambda piece: False)
        self._headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        self.is_started = False

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers; call it before the first write."""
        self._headers |= headers

    async def write(self, value: Any) -> None:
        """Send a value as one event."""
        name = f"event: {value['type']}\n".encode() if isinstance(value, NamedEvent) else b""
        await self._chunk(b"%bdata: %b\n\n" % (name, to_json(value)))

    async def write_comment(self, text: str) -> None:
        """Send a comment, which every client ignores, to show that the server is alive."""
        await self._chunk(f": {text}\n\n".encode())

    async def end_with_done(self) -> None:
        """Send [DONE] and end the answer, as the engine's own server and OpenAI's do."""
        await self._chunk(b"data: [DONE]\n\n", more=False)

    async def end(self) -> None:
        """End the answer."""
        await self._chunk(b"", more=False)

    async def _chunk(self, chunk: bytes, *, more: bool = True) -> None:
        if not self.is_started:
            self.is_started = True
            pairs = self._headers.items()
            headers = [(name.lower().encode(), value.encode()) for name, value in pairs]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if more and self._write_at_once(chunk):
            return
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
