"""Reads how the axes of an array are arranged, as it is spelt: `d n h -> (n h) d`.

On the left stand the axes that it has, on the right those of a tensor in a file.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from hotreload.checkpoint.arrays.arranged_array import ArrangedArray, Arrangement
from hotreload.errors import BadRequest, shown

_PART = r"(?:[a-z]+|[1-9]\d*)"
_AXIS = rf"(?:{_PART}|\({_PART}(?: {_PART})*\))"
_SIDE = rf"{_AXIS}(?: {_AXIS})*"
_FORM = re.compile(rf"({_SIDE}) -> ({_SIDE})")
_OR = " | "
_NUMBERED = re.compile(r"\{([a-z]+)\}")
Axes = tuple[tuple[str, ...], ...]
"""Those of an array, each with its parts: a name, or the length itself."""


class OtherAxes(Exception):
    """Says that an array has other axes than it is to be arranged by."""


@dataclass(frozen=True, slots=True)
class Form:
    """An arrangement for arrays of any lengths."""

    before: Axes
    after: Axes

    @property
    def stacked_axes(self) -> tuple[str, ...]:
        """The axes along which the array stacks several tensors, which do not have them."""
        kept = {part for axis in self.after for part in axis}
        return tuple(axis[0] for axis in self.before if kept.isdisjoint(axis))

    def arrangement(self, shape: tuple[int, ...], factor: float) -> Arrangement:
        """Say how each tensor is made of an array of this shape."""
        own = [
            (axis, length)
            for axis, length in zip(self.before, shape, strict=True)
            if axis[0] not in self.stacked_axes
        ]
        before = [part for axis, _ in own for part in axis]
        order = tuple(before.index(part) for axis in self.after for part in axis)
        parts = tuple(_lengths(axis, length) for axis, length in own)
        return Arrangement(parts, order, tuple(map(len, self.after)), factor)


def arrange(
    array: Any, spelt: str, name: str = "", factor: float = 1.0
) -> Iterator[tuple[str, ArrangedArray]]:
    """Yield the tensors that an array is, or stacks, by name; OtherAxes if its axes differ.

    The name has the axes in braces along which they are stacked: `model.layers.{layer}.…`. Of
    several forms, as in `i o -> o i | d n h -> (n h) d`, the one for so many axes counts.
    """
    shape = tuple(int(length) for length in getattr(array, "shape", ()))
    form = next((each for each in _forms(spelt, name) if len(each.before) == len(shape)), None)
    if form is None:
        raise OtherAxes
    how, stacking = form.arrangement(shape, factor), form.stacked_axes
    axes = {axis[0]: at for at, axis in enumerate(form.before) if axis[0] in stacking}
    for numbers in product(*(range(shape[at]) for at in axes.values())):
        places = dict(zip(axes.values(), numbers, strict=True))
        yield (
            _fill_numbers(name, dict(zip(axes, numbers, strict=True))),
            ArrangedArray(array, how, places),
        )


def _fill_numbers(name: str, numbers: dict[str, int]) -> str:
    """Return the name of one tensor in a stack; that of a single one as it is."""
    return _NUMBERED.sub(lambda axis: str(numbers[axis[1]]), name) if numbers else name


@cache
def _forms(spelt: str, name: str) -> tuple[Form, ...]:
    """Parse the forms of an arrangement; BadRequest if it is malformed or does not fit the name."""
    forms = tuple(_form(each, spelt) for each in spelt.split(_OR))
    for form in forms:
        if form.stacked_axes and sorted(form.stacked_axes) != sorted(_NUMBERED.findall(name)):
            words = f"{shown(spelt)} is no arrangement of axes for {shown(name)}"
            missing = ", ".join(f"{{{axis}}}" for axis in form.stacked_axes)
            raise BadRequest(f"{words}: where tensors are stacked their name has {missing} in it")
    return forms


def _form(spelt: str, all_of_it: str) -> Form:
    found = _FORM.fullmatch(spelt)
    if found:
        form = Form(_axes(found[1]), _axes(found[2]))
        before, after = (
            [part for axis in side for part in axis] for side in (form.before, form.after)
        )
        is_once = len({*before}) == len(before) and len({*after}) == len(after)
        is_whole = {*before} == {*after, *form.stacked_axes}
        if is_once and is_whole and all(map(_is_named, form.before)):
            return form
    raise BadRequest(f"{shown(all_of_it)} is no arrangement of axes, as 'd n h -> (n h) d' is one")


def _axes(side: str) -> Axes:
    return tuple(tuple(each.strip("()").split()) for each in re.findall(_AXIS, side))


def _is_named(axis: tuple[str, ...]) -> bool:
    """Say if one part of an axis has a name, and the others are lengths: then all are known."""
    return sum(not part.isdigit() for part in axis) == 1


def _lengths(axis: tuple[str, ...], length: int) -> tuple[int, ...]:
    known = math.prod(int(part) for part in axis if part.isdigit())
    if length % known:
        raise OtherAxes
    return tuple(int(part) if part.isdigit() else length // known for part in axis)
