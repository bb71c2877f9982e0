"""Maps a program's own names of its tensors to those of the Hugging Face Hub."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from hotreload.checkpoint.arrays.arrangement import OtherAxes, arrange
from hotreload.errors import BadRequest, show_value
from hotreload.hot.given_weights import GivenWeights, Renamed

Factor = float | Callable[[tuple[int, ...]], float]
"""A number that an array is multiplied by, or a function of the array's shape that returns it."""
Name = str | tuple[str, str] | tuple[str, str, Factor]
"""Hugging Face's name, and if needed the arrangement of the axes (`d n h -> (n h) d`)."""
Names = Mapping[str, Name] | Callable[[str], Name | None]
"""A table from a program's names to Hugging Face's, or a lookup, which returns None if unknown."""
UNKNOWN_SHOWN = 10


def rename(given: GivenWeights, names: Names | None) -> GivenWeights:
    """Return the arrays by their Hugging Face names; BadRequest lists the unknown names.

    The arrays may lie in a tree of mappings and lists, as in an `nnx.State`: the keys, joined by
    dots, are the name.
    """
    if names is None:
        return given
    if not isinstance(given, Mapping):
        raise BadRequest("names are for a mapping of arrays: what a folder holds has its names")
    if not (isinstance(names, Mapping) or callable(names)):
        raise BadRequest(f"names must be a table or a callable, not {show_value(names)}")
    arrays = {str(name): each for name, each in _flatten(given)}
    found = {name: _look_up(names, name) for name in arrays}
    known = {name: each for name, each in found.items() if _is_name(each)}
    if unknown := [name for name in found if name not in known]:
        raise _unfit("names does not know", unknown)
    called: dict[str, str] = {}
    tensors: dict[str, Any] = {}
    for name, array in arrays.items():
        for other, tensor in _tensors(name, array, known[name]):
            if other in called:
                raise _unfit(f"names calls {show_value(called[other])} the same as", [name])
            called[other], tensors[other] = name, tensor
    return Renamed(tensors, called)


def _flatten(
    tree: Mapping[Any, Any] | Sequence[Any], before: str = ""
) -> Iterator[tuple[Any, Any]]:
    """Yield each array of a tree by its name; for a variable of flax its value."""
    for key, each in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        name = f"{before}.{key}" if before else key
        if isinstance(each, Mapping | list | tuple):
            yield from _flatten(each, str(name))
        else:
            value = getattr(each, "get_raw_value", None)
            yield name, each if value is None else value()


def _is_name(found: object) -> TypeGuard[Name]:
    if not isinstance(found, tuple):
        return isinstance(found, str)
    is_two = len(found) in (2, 3) and all(isinstance(each, str) for each in found[:2])
    return is_two and all(callable(each) or _is_factor(each) for each in found[2:])


def _is_factor(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value != 0


def _tensors(name: str, array: Any, found: Name) -> Iterator[tuple[str, Any]]:
    """Yield the tensor that an array is, or the tensors that it stacks, by name."""
    if isinstance(found, str):
        yield found, array
        return
    other, axes, *factors = found
    shape = tuple(getattr(array, "shape", ()))
    factor = math.prod(each(shape) if callable(each) else each for each in factors)
    try:
        yield from arrange(array, axes, other, factor)
    except OtherAxes:
        words = f"is {shape}, and is to be arranged by '{axes}'"
        raise BadRequest(f"{show_value(name)} {words}") from None


def _look_up(names: Names, name: Any) -> object:
    """Return the Hugging Face name that `names` has for this name, or None."""
    try:
        return names[name] if isinstance(names, Mapping) else names(name)
    except LookupError:
        return None


def _unfit(words: str, names: list[str]) -> BadRequest:
    named = [show_value(name) for name in names[:UNKNOWN_SHOWN]]
    more = f" and {len(names) - UNKNOWN_SHOWN} more" if len(names) > UNKNOWN_SHOWN else ""
    return BadRequest(f"{words} {', '.join(named)}{more}", findings=named)
