"""The kinds of values in the fields of requests: each in words, and as a type that checks them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field, TypeAdapter, ValidationError

from hotreload.json_fields import Fields

MOST_STOPS = 16


@dataclass(frozen=True)
class Kind:
    """The kind of value that a field must have: as words, and as a type."""

    words: str
    type: Any = Any
    """The type of the values, of which the described API makes a JSON schema."""
    checked_as: Any = None
    """A wider type to check values by, where later code names the fault better; None for none."""

    @cached_property
    def _check(self) -> Callable[..., Any]:
        checked_as = self.type if self.checked_as is None else self.checked_as
        return TypeAdapter(checked_as).validator.validate_python

    def fits(self, value: Any) -> bool:
        """Return True if the value is of this kind."""
        try:
            self._check(value, strict=True)
        except ValidationError:
            return False
        return True


def is_number(value: Any) -> bool:
    """True for a JSON number; false for a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """True for a JSON integer; false for a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(least: float, most: float) -> Kind:
    """Return the kind of a number within bounds."""
    bounded = Annotated[float, Field(ge=least, le=most)]
    return Kind(f"a number from {least:g} to {most:g}", bounded)


def whole_number(least: int, most: int) -> Kind:
    """Return the kind of an integer within bounds."""
    bounded = Annotated[int, Field(ge=least, le=most)]
    return Kind(f"a whole number from {least} to {most}", bounded)


def text(most: int) -> Kind:
    """Return the kind of a string of at most so many characters."""
    bounded = Annotated[str, Field(max_length=most)]
    return Kind(f"a string of at most {most} characters", bounded)


def one_of(*words: str) -> Kind:
    """Return the kind of a string that is one of these words."""
    return Kind(f"{', '.join(words[:-1])} or {words[-1]}", Literal[words])


def list_of(item: Any, least: int | None = None, most: int | None = None) -> Any:
    """Return the type of a list; its check ends at the first wrong item, of perhaps millions."""
    return Annotated[list[item], Field(min_length=least, max_length=most, fail_fast=True)]


def one_or_list(words: str, kind: Any) -> Kind:
    """Return the kind of a value of this type, or a list with one for each prompt."""
    return Kind(f"{words} or a list of them", kind | list_of(kind))


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


ANYTHING = Kind("anything: it changes no answer")
NULL_ONLY = Kind("null: this server does not support it", checked_as=NoneType)
"""A null counts as left out, and no other value fits."""
BOOLEAN = Kind("true or false", bool)
INTEGER = Kind("an integer", int)
STRING = Kind("a string", str)
STRINGS = Kind("a list of strings", list_of(str))
OBJECT = Kind("an object", Fields)
NAME_OF_WEIGHTS = text(most=4096)
"""The path of a checkpoint or a revision; no path is longer."""
POSITIVE_SECONDS = Kind("a positive number of seconds", Annotated[float, Field(gt=0, lt=1e9)])
CHOICES = whole_number(1, 128)
TOKENS = whole_number(0, 2**31 - 1)
TOP_P = Kind("a number above 0 and at most 1", Annotated[float, Field(gt=0, le=1)])
TOP_K = Kind(
    "a positive whole number, or -1 for the whole vocabulary",
    Literal[-1] | Annotated[int, Field(ge=1, le=2**30)],
    Annotated[int, Field(ge=-1, le=2**30)],  # 0 counts as left out
)
IDS = Kind("a list of token ids", list_of(int))
ID_LISTS = list_of(int) | list_of(list_of(int))
IDS_OR_BATCH = Kind("a list of token ids or a list of such lists", ID_LISTS)
_Ids = list_of(int, least=1)
PROMPT = Kind(
    "a string, a list of strings, a list of token ids or a list of such lists",
    str | list_of(str, least=1) | _Ids | list_of(_Ids, least=1),
)
_Stop = Annotated[str, Field(min_length=1)]
STOP = Kind(
    f"a string or a list of up to {MOST_STOPS} strings, none of them empty",
    _Stop | list_of(_Stop, least=1, most=MOST_STOPS),
)
MESSAGES = Kind(
    "a list of messages, at least one",
    list_of(AskedMessageFields, least=1),
    list_of(Any, least=1),
)
TOOLS = Kind("a list of tools", list_of(ToolFields), list_of(Fields))
TOOL_CHOICE = Kind(
    "a string or an object", Literal["auto", "none", "required"] | Fields, str | Fields
)
