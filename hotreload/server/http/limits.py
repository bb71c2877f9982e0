"""The limits on headers and bodies, and the middleware that enforces them.

uvicorn itself limits neither the size of a body nor the time it takes to arrive.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.server.http.problems import Refused
from hotreload.server.http.shared_counters import SharedCounter
from hotreload.server_limits import Limits

FREE_BYTES = 64 * 2**10
"""Bytes of each body that are not counted, so that small requests pass beside large ones.

A connection may hold as many before the server reads the request."""
VALUE_BYTES = 48
"""Bytes that one JSON value takes in memory, roughly; a parsed list of numbers takes many times the
bytes of its text."""


class Bodies:
    """Counts the bytes that the bodies of all requests under way take together.

    A parsed body lives until its request ends, and its bytes are counted until then.
    """

    def __init__(self, limits: Limits, held: SharedCounter | None = None) -> None:
        """`held` counts the bytes in all processes that serve the same model."""
        self._held = held or SharedCounter()
        self._limits = limits

    @property
    def held_bytes(self) -> int:
        """The bytes that all requests hold now."""
        return self._held.total

    def take(self, size: int, has: int) -> None:
        """Reserve bytes for a request that holds `has` already; Refused at the limit."""
        self.check(size, has)
        self._held.add(size)

    def check(self, size: int, has: int = 0) -> None:
        """Raise Refused if so many bytes would exceed the limit. A single request never does."""
        most = self._limits.bodies_bytes
        if self.held_bytes > has and self.held_bytes + size > most:
            raise Refused(
                503,
                "too_many_bytes",
                f"the bodies of the requests under way hold {self.held_bytes} bytes of {most} "
                "([server.limits] bodies_bytes)",
                headers={"Retry-After": "1"},
            )

    def give_back(self, size: int) -> None:
        """Release this many bytes."""
        self._held.add(-size)


class LimitsMiddleware:
    """Refuses headers and bodies that are too long, and bodies that arrive too slowly."""

    def __init__(self, app: ASGIApp, limits: Limits, bodies: Bodies) -> None:
        self._app = app
        self._limits = limits
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._check_headers(scope)
        body = _Body(receive, self._limits, self._bodies)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.forget()

    def _check_headers(self, scope: Scope) -> None:
        # h11 stops reading at its limit, but accepts longer headers that came in one piece.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"content-length":
                self._check_length(int(value))
        if size > self._limits.header_bytes:
            raise headers_too_long()

    def _check_length(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise body_too_long(self._limits)
        self._bodies.check(_bytes_over_free(size))


class _Body:
    """One request's body, counted as it arrives."""

    def __init__(self, receive: Receive, limits: Limits, bodies: Bodies) -> None:
        self._receive = receive
        self._limits = limits
        self._bodies = bodies
        self._size = 0
        self._weight = 0
        self._taken = 0
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
        piece = message.get("body", b"")
        self._size += len(piece)
        self._weight += len(piece) + VALUE_BYTES * sum(map(piece.count, (b",", b"[", b"{")))
        self._whole = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise body_too_long(self._limits)
        more = _bytes_over_free(self._weight) - self._taken
        self._bodies.take(more, self._taken)
        self._taken += more

    def forget(self) -> None:
        """Release the body's bytes once the request has ended."""
        self._bodies.give_back(self._taken)
        self._taken = 0


def _bytes_over_free(size: int) -> int:
    return max(0, size - FREE_BYTES)


def body_too_long(limits: Limits) -> Refused:
    """Return the 413 for a body over the limit."""
    return Refused(
        413,
        "body_too_long",
        f"the body is longer than {limits.body_bytes} bytes ([server.limits] body_bytes)",
    )


def headers_too_long() -> Refused:
    """Return the 431 for headers over the limit."""
    words = "the headers are longer than is allowed ([server.limits] header_bytes)"
    return Refused(431, "headers_too_long", words)
