"""The description of a route, which stands at its handler: its fields and its answers.

A body is read, and checked, by the same description.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from starlette.requests import Request

from hotreload.errors import BadRequest, cut, did_you_mean, show_value
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import Kind
from hotreload.server.http.senders import check_sender

TEXT, EVENTS = "text/plain", "text/event-stream"
MOST_ITEMS_CHECKED = 1000
"""Items of a list among which the wrong one is searched: a client may send millions."""
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
    check_required(given, described.required)
    return given


def check_required(given: Fields, names: Iterable[str]) -> None:
    """Raise BadRequest for a field that is missing."""
    for name in names:
        if name not in given:
            raise BadRequest(f"{name} is missing", code="bad_field", param=name)


def shorten(name: str) -> str:
    """Return a field's name, cut to the length that a problem shows."""
    return cut(name, 60)


async def read_object(request: Request, *, nesting: int = 32, may_be_empty: bool = False) -> Fields:
    """Return the body as a JSON object with any fields."""
    check_sender(request.headers)
    body = await request.body()
    if may_be_empty and not body.strip():
        return {}
    return _parse_object(body, nesting)


def check_kinds(
    fields: Fields,
    kinds: Mapping[str, Kind],
    within: str = "",
    other_names: Mapping[str, str] = MappingProxyType({}),
) -> Fields:
    """Return the fields that are not null; BadRequest for an unknown field or a wrong kind.

    `within` is the prefix of their names in messages. `other_names` maps names of other APIs to
    the fields that they mean here.
    """
    if unknown := [name for name in fields if name not in kinds]:
        meant = other_names.get(unknown[0])
        hint = f"; did you mean {meant}?" if meant else did_you_mean(unknown[0], kinds)
        named = _names([f"{within}{name}" for name in unknown])
        raise BadRequest(
            f"unknown field {named}{hint}; known are {', '.join(sorted(kinds))}",
            code="unknown_field",
            param=shorten(within + unknown[0]),
        )
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & kinds.keys():
        kind, value = kinds[name], given[name]
        if not kind.fits(value):
            said = f"{within}{name} must be {kind.words}, {_describe_fault(value, kind)}"
            raise BadRequest(said, code="bad_field", param=within + name)
    return given


def _parse_object(body: bytes, nesting: int) -> Fields:
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start}", code="bad_utf8") from None
    except RecursionError:
        raise _too_deep(nesting) from None
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}", code="bad_json") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {_describe(value)}", code="bad_json")
    _check_nesting(body, value, nesting)
    _check_surrogates(body, value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(body: bytes, value: Any, nesting: int) -> None:
    """Refuse a value that would exhaust the stack when later code copies or pickles it."""
    if body.count(b"[") + body.count(b"{") <= nesting:
        return
    level = [value]
    for _ in range(nesting):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return
    raise _too_deep(nesting)


def _containers(outer: Any) -> list[Any]:
    items = outer.values() if isinstance(outer, dict) else outer
    return [item for item in items if isinstance(item, dict | list)]


def _too_deep(nesting: int) -> BadRequest:
    return BadRequest(f"the body is nested deeper than {nesting} levels", code="too_deep")


def _check_surrogates(body: bytes, value: Any) -> None:
    if b"\\ud" not in body.lower():
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("the body holds half a surrogate pair", code="bad_utf8") from None


def _names(unknown: list[str]) -> str:
    named = ", ".join(show_value(name) for name in unknown[:5])
    return named if len(unknown) <= 5 else f"{named} and {len(unknown) - 5} more"


def _describe_fault(value: Any, kind: Kind) -> str:
    """Describe the fault of a value: its kind, or the first wrong item of a list."""
    items = value[:MOST_ITEMS_CHECKED] if isinstance(value, list) else []
    at = next((at for at, item in enumerate(items) if not kind.fits([item])), None)
    if at is None or not any(kind.fits([item]) for item in items):
        return f"not {_describe(value)}"
    return f"and item {at + 1} of the list is {_describe(items[at])}"


def _describe(value: Any) -> str:
    if value == []:
        return "an empty list"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value) if isinstance(value, bool) else show_value(value)
