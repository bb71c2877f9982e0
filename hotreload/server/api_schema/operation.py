"""The description of a route, which stands at its handler: its fields and its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.server.http.request_body import Kind

TEXT, EVENTS = "text/plain", "text/event-stream"
Security = tuple[Mapping[str, tuple[str, ...]], ...]
"""Alternative ways to get access, any of which is enough; `{}` means none is needed."""
TO_ALL: Security = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A header, a query parameter or a part of the path."""

    name: str
    kind: Kind
    words: str
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of one route, and the decorator that puts it at a handler."""

    words: str
    answer: Any = None
    """The type of the answer in JSON; None if it is not in JSON, or empty."""
    refusals: tuple[int, ...] = ()
    """Statuses beside 200, those that any request may get, and 403 for no administrator."""
    media: Sequence[str] = ()
    """Other media types of the answer."""
    body: Mapping[str, Kind] | None = None
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """Fields of which a body has exactly one."""
    parameters: Sequence[Parameter] = ()
    others: Mapping[int, Any] = field(default_factory=dict)
    """The types of answers in JSON with another status than 200 that are no problem."""
    may_be_empty: bool = False
    success: int = 200
    security: Security | None = None
    """None for a key over TCP: an admin key if the route asks for an administrator's rights."""

    def __call__[H](self, handler: H) -> H:
        """Put the description at a handler, and return the handler."""
        handler.operation = self  # type: ignore[attr-defined]
        return handler
