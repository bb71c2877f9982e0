"""The description of a route, which stands at its handler: its fields and its answers.

A body is read, and checked, by the same description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.http.request_body import Kind, check_kinds, read_object

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


async def read_body(request: Request, *, nesting: int = 32) -> Fields:
    """Return the body's fields, each as the handler's description says; a null counts as left out.

    BadRequest for a field that is unknown, of a wrong kind, or missing.
    """
    described: Operation = request.scope["endpoint"].operation
    body = await read_object(request, nesting=nesting, may_be_empty=described.may_be_empty)
    given = check_kinds(body, described.body or {})
    for name in described.required:
        if name not in given:
            raise BadRequest(f"{name} is missing", code="bad_field", param=name)
    return given
