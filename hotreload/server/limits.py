"""What one client may ask of the server, and the middleware that holds it to that.

uvicorn itself limits neither bodies nor the time they take.
"""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.server.problems import Refused


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the server; seconds and bytes."""

    body_bytes: int = 8 * 2**20
    header_bytes: int = 64 * 2**10
    concurrent: int = 2048
    """Requests to the model at a time, those who wait at the gate among them."""
    request_seconds: float = 600.0
    generation_seconds: float = 30.0
    """How long a request waits for the generation it asks for at the least."""
    batch: int = 256
    nesting: int = 32
    arrival_seconds: float = 30.0
    """How long the headers of a request may take to arrive, and then its body."""
    write_seconds: float = 15.0
    """A client that reads nothing for so long is hung up on; it would hold up every swap."""
    keep_alive_seconds: float = 75.0
    listeners: int = 64
    """Clients of /events."""
    listener_queue: int = 256
    """Events a client of /events may be behind before it is dropped."""
    heartbeat_seconds: float = 15.0


class Limited:
    """Refuses headers and bodies that are too long, and bodies that take too long."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._check_headers(scope)
            receive = _Body(receive, self._limits).receive
        await self._app(scope, receive, send)

    def _check_headers(self, scope: Scope) -> None:
        # The protocol stops reading at its limit; what came in one piece before is counted here.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"content-length" and int(value) > self._limits.body_bytes:
                raise body_too_long(self._limits)
        if size > self._limits.header_bytes:
            raise headers_too_long()


class _Body:
    """One request's body as it arrives."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._size = 0
        self._whole = False
        self._deadline = asyncio.get_running_loop().time() + limits.arrival_seconds

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise Refused(
                408,
                "body_too_slow",
                f"the body was not whole after {self._limits.arrival_seconds:g} s",
                headers={"Connection": "close"},
            ) from None
        self._count(message)
        return message

    def _count(self, message: Message) -> None:
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise body_too_long(self._limits)


def body_too_long(limits: Limits) -> Refused:
    """The 413 for a body over the limit."""
    return Refused(
        413,
        "body_too_long",
        f"the body is longer than {limits.body_bytes} bytes ([server.limits] body_bytes)",
    )


def headers_too_long() -> Refused:
    """The 431 for headers over the limit."""
    words = "the headers are longer than is allowed ([server.limits] header_bytes)"
    return Refused(431, "headers_too_long", words)
