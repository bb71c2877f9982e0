"""Reads the body of a request: a JSON object of known fields, decently nested and spelled."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from starlette.requests import Request

from hotreload.errors import BadRequest, cut, did_you_mean, shown
from hotreload.json_fields import Fields
from hotreload.server.http.browsers import check_sender

LOOKED_AT = 1000
"""Items of a list in which one that is wrong is looked for: a client may send millions."""


class Kind(NamedTuple):
    """The kind of value that a field must have: in words, as a test, and as a JSON schema."""

    words: str
    fits: Callable[[Any], bool]
    schema: Mapping[str, Any] = MappingProxyType({})


def is_number(value: Any) -> bool:
    """True if it is a JSON number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """True if it is a JSON integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_number(least: int, most: int) -> Kind:
    """An integer within bounds."""
    return Kind(
        f"a whole number from {least} to {most}",
        lambda value: is_integer(value) and least <= value <= most,
        {"type": "integer", "minimum": least, "maximum": most},
    )


def text(most: int) -> Kind:
    """A string that is not longer."""
    return Kind(
        f"a string of at most {most} characters",
        lambda value: isinstance(value, str) and len(value) <= most,
        {"type": "string", "maxLength": most},
    )


def short(name: str) -> str:
    """The name of a field, as the path to it in a problem shows it."""
    return cut(name, 60)


BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
STRING = Kind("a string", lambda value: isinstance(value, str), {"type": "string"})
NAME_OF_WEIGHTS = text(most=4096)
"""Of a path or a revision; no path is longer."""
INTEGER = Kind("an integer", is_integer, {"type": "integer"})
OBJECT = Kind("an object", lambda value: isinstance(value, dict), {"type": "object"})
POSITIVE_SECONDS = Kind(
    "a positive number of seconds",
    lambda value: is_number(value) and 0 < value < 1e9,
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9},
)


async def read_fields(
    request: Request,
    kinds: Mapping[str, Kind],
    *,
    nesting: int = 32,
    may_be_empty: bool = False,
) -> Fields:
    """Read the body as an object of these fields; a field that is null counts as left out."""
    body = await read_object(request, nesting=nesting, may_be_empty=may_be_empty)
    return check_kinds(body, kinds)


async def read_object(request: Request, *, nesting: int = 32, may_be_empty: bool = False) -> Fields:
    """Read the body as a JSON object, whatever its fields are."""
    check_sender(request.headers)
    body = await request.body()
    if may_be_empty and not body.strip():
        return {}
    return _object(body, nesting)


def check_kinds(
    fields: Fields,
    kinds: Mapping[str, Kind],
    within: str = "",
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Fields:
    """The fields that are given, each of its kind; `within` stands before their names in words.

    `elsewhere` says of names that are unknown here what is meant by them.
    """
    unknown = [name for name in fields if name not in kinds]
    if unknown:
        named = _names([f"{within}{name}" for name in unknown])
        raise BadRequest(
            f"unknown field {named}{_meant(unknown[0], kinds, elsewhere)}; known are "
            f"{', '.join(sorted(kinds))}",
            code="unknown_field",
            param=short(within + unknown[0]),
        )
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & kinds.keys():
        words, fits, _ = kinds[name]
        if not fits(given[name]):
            said = f"{within}{name} must be {words}, {_amiss(given[name], fits)}"
            raise BadRequest(said, code="bad_field", param=within + name)
    return given


def _object(body: bytes, nesting: int) -> Fields:
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start}", code="bad_utf8") from None
    except RecursionError:
        raise _too_deep(nesting) from None
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}", code="bad_json") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {_as_json(value)}", code="bad_json")
    _check_nesting(body, value, nesting)
    _check_surrogates(body, value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(body: bytes, value: Any, nesting: int) -> None:
    """Refuse what would exhaust the stack when it is copied or pickled further in."""
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


def _meant(name: str, kinds: Mapping[str, Kind], elsewhere: Mapping[str, str]) -> str:
    """Ask, in words, whether another field was meant by an unknown one; empty if none is near."""
    if name in elsewhere:
        return f"; did you mean {elsewhere[name]}?"
    return did_you_mean(name, kinds)


def _names(unknown: list[str]) -> str:
    named = ", ".join(shown(name) for name in unknown[:5])
    return named if len(unknown) <= 5 else f"{named} and {len(unknown) - 5} more"


def _amiss(value: Any, fits: Callable[[Any], bool]) -> str:
    """Say what is wrong with a value: its kind, or in a list of the right kind one of its items."""
    items = value[:LOOKED_AT] if isinstance(value, list) else []
    at = next((at for at, item in enumerate(items) if not fits([item])), None)
    if at is None or not any(fits([item]) for item in items):
        return f"not {_as_json(value)}"
    return f"and item {at + 1} of the list is {_as_json(items[at])}"


def _as_json(value: Any) -> str:
    if value == []:
        return "an empty list"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value) if isinstance(value, bool) else shown(value)
