"""A program's own names of its tensors, and what they are called on the Hugging Face Hub."""

from collections.abc import Callable, Mapping
from typing import Any

from hotreload.errors import BadRequest, shown
from hotreload.hot.given_weights import GivenWeights

Names = Mapping[str, str] | Callable[[str], str | None]
"""A table of a program's names and Hugging Face's, or what looks one up; None for an unknown one.
"""
UNKNOWN_SHOWN = 10


def renamed(given: GivenWeights, names: Names | None) -> GivenWeights:
    """The same arrays by their Hugging Face names; BadRequest lists those that are unknown."""
    if names is None:
        return given
    if not isinstance(given, Mapping):
        raise BadRequest("names are for a mapping of arrays: what a folder holds has its names")
    if not (isinstance(names, Mapping) or callable(names)):
        raise BadRequest(f"names must be a table or a callable, not {shown(names)}")
    found = {name: _looked_up(names, name) for name in given}
    if unknown := [name for name in found if not isinstance(found[name], str)]:
        raise _unfit("names does not know", unknown)
    if len(twice := _shared(found)) > 0:
        raise _unfit("names calls others the same as", twice)
    return {str(found[name]): array for name, array in given.items()}


def _looked_up(names: Names, name: Any) -> object:
    """The name that `names` has for it; None where there is none."""
    try:
        return names[name] if isinstance(names, Mapping) else names(name)
    except LookupError:
        return None


def _shared(found: Mapping[str, object]) -> list[str]:
    """The names whose other one was another's before."""
    first: dict[object, str] = {}
    return [name for name, other in found.items() if first.setdefault(other, name) != name]


def _unfit(words: str, names: list[str]) -> BadRequest:
    named = [shown(name) for name in names[:UNKNOWN_SHOWN]]
    more = f" and {len(names) - UNKNOWN_SHOWN} more" if len(names) > UNKNOWN_SHOWN else ""
    return BadRequest(f"{words} {', '.join(named)}{more}", findings=named)
