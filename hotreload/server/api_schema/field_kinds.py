"""The kinds of values in the fields of a request to the model."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from hotreload.json_fields import Fields
from hotreload.server.http.request_body import Kind, is_integer, is_number, whole_number

MOST_CHOICES = 128
MOST_STOPS = 16
NotEmpty = Field(min_length=1)


def number(least: float, most: float) -> Kind:
    """Return the kind of a number within bounds."""
    return Kind(
        f"a number from {least:g} to {most:g}",
        lambda value: is_number(value) and least <= value <= most,
        Annotated[float, Field(ge=least, le=most)],
    )


def are_strings(value: Any) -> bool:
    """True for a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(is_integer(each) for each in value)


def are_ids_or_batch(value: Any) -> bool:
    """True for a list of token ids, or a list of such lists."""
    return _are_ids(value) or (isinstance(value, list) and all(_are_ids(item) for item in value))


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return all(each and _are_ids(each) for each in value)
    return isinstance(value, str) or (bool(value) and (are_strings(value) or _are_ids(value)))


def _are_stops(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return are_strings(stops) and 0 < len(stops) <= MOST_STOPS and all(stops)


class AskedMessageFields(TypedDict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str
    name: NotRequired[str]


class FunctionFields(TypedDict):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: NotRequired[str]
    parameters: NotRequired[Fields]


class ToolFields(TypedDict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: FunctionFields


_Ids = Annotated[list[int], NotEmpty]
PROMPT = Kind(
    "a string, a list of strings, a list of token ids or a list of such lists",
    _is_prompt,
    str | Annotated[list[str], NotEmpty] | _Ids | Annotated[list[_Ids], NotEmpty],
)
STOP = Kind(
    f"a string or a list of up to {MOST_STOPS} strings, none of them empty",
    _are_stops,
    Annotated[str, NotEmpty]
    | Annotated[list[Annotated[str, NotEmpty]], Field(min_length=1, max_length=MOST_STOPS)],
)
MESSAGES = Kind(
    "a list of messages, at least one",
    lambda value: isinstance(value, list) and bool(value),
    Annotated[list[AskedMessageFields], NotEmpty],
)
TOOLS = Kind(
    "a list of tools",
    lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
    list[ToolFields],
)
TOOL_CHOICE = Kind(
    "a string or an object",
    lambda value: isinstance(value, str | dict),
    Literal["auto", "none", "required"] | Fields,
)
CHOICES = whole_number(1, MOST_CHOICES)
TOKENS = whole_number(0, 2**31 - 1)
TOP_P = Kind(
    "a number above 0 and at most 1",
    lambda value: is_number(value) and 0 < value <= 1,
    Annotated[float, Field(gt=0, le=1)],
)
TOP_K = Kind(
    "a positive whole number, or -1 for the whole vocabulary",
    lambda value: is_integer(value) and (value == -1 or 0 < value <= 2**30),
    Literal[-1] | Annotated[int, Field(ge=1, le=2**30)],
)
IDS = Kind("a list of token ids", _are_ids, list[int])
IDS_OR_BATCH = Kind(
    "a list of token ids or a list of such lists", are_ids_or_batch, list[int] | list[list[int]]
)


def one_or_list(words: str, kind: type) -> Kind:
    """Return the kind of a value of this type, or a list with one for each prompt."""

    def fits(value: Any) -> bool:
        items = value if isinstance(value, list) else [value]
        return all(isinstance(item, kind) for item in items)

    return Kind(f"{words} or a list of them", fits, kind | list[kind])  # type: ignore[valid-type]
