"""Reads a request's body: a JSON object with known fields, within the limit on nesting."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NoReturn

from pydantic import Field
from starlette.requests import Request

from hotreload.errors import BadRequest, cut, did_you_mean, show_value
from hotreload.json_fields import Fields
from hotreload.server.http.browsers import check_sender

MOST_ITEMS_CHECKED = 1000
"""Items of a list among which the wrong one is searched: a client may send millions."""


class Kind(NamedTuple):
    """The kind of value that a field must have: as words, as a check, and as a type."""

    words: str
    fits: Callable[[Any], bool]
    type: Any = Any
    """The type of the values, of which the described API makes a JSON schema."""


def is_number(value: Any) -> bool:
    """True for a JSON number; false for a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """True for a JSON integer; false for a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_number(least: int, most: int) -> Kind:
    """Return the kind of an integer within bounds."""
    return Kind(
        f"a whole number from {least} to {most}",
        lambda value: is_integer(value) and least <= value <= most,
        Annotated[int, Field(ge=least, le=most)],
    )


def text(most: int) -> Kind:
    """Return the kind of a string of at most so many characters."""
    return Kind(
        f"a string of at most {most} characters",
        lambda value: isinstance(value, str) and len(value) <= most,
        Annotated[str, Field(max_length=most)],
    )


def shorten(name: str) -> str:
    """Return a field's name, cut to the length that a problem shows."""
    return cut(name, 60)


BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool), bool)
STRING = Kind("a string", lambda value: isinstance(value, str), str)
NAME_OF_WEIGHTS = text(most=4096)
"""The path of a checkpoint or a revision; no path is longer."""
INTEGER = Kind("an integer", is_integer, int)
OBJECT = Kind("an object", lambda value: isinstance(value, dict), Fields)
POSITIVE_SECONDS = Kind(
    "a positive number of seconds",
    lambda value: is_number(value) and 0 < value < 1e9,
    Annotated[float, Field(gt=0, lt=1e9)],
)


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
    unknown = [name for name in fields if name not in kinds]
    if unknown:
        named = _names([f"{within}{name}" for name in unknown])
        raise BadRequest(
            f"unknown field {named}{_suggest(unknown[0], kinds, other_names)}; known are "
            f"{', '.join(sorted(kinds))}",
            code="unknown_field",
            param=shorten(within + unknown[0]),
        )
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & kinds.keys():
        words, fits, _ = kinds[name]
        if not fits(given[name]):
            said = f"{within}{name} must be {words}, {_describe_fault(given[name], fits)}"
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


def _suggest(name: str, kinds: Mapping[str, Kind], other_names: Mapping[str, str]) -> str:
    """Return a hint at the field that an unknown name may mean; empty if none is near."""
    if name in other_names:
        return f"; did you mean {other_names[name]}?"
    return did_you_mean(name, kinds)


def _names(unknown: list[str]) -> str:
    named = ", ".join(show_value(name) for name in unknown[:5])
    return named if len(unknown) <= 5 else f"{named} and {len(unknown) - 5} more"


def _describe_fault(value: Any, fits: Callable[[Any], bool]) -> str:
    """Describe the fault of a value: its kind, or the first wrong item of a list."""
    items = value[:MOST_ITEMS_CHECKED] if isinstance(value, list) else []
    at = next((at for at, item in enumerate(items) if not fits([item])), None)
    if at is None or not any(fits([item]) for item in items):
        return f"not {_describe(value)}"
    return f"and item {at + 1} of the list is {_describe(items[at])}"


def _describe(value: Any) -> str:
    if value == []:
        return "an empty list"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value) if isinstance(value, bool) else show_value(value)
