"""Presents an array in a file's order of axes, though its owner has another order.

An arrangement is spelt `d n h -> (n h) d`: on the left stand the axes that the array has, on the
right those of a tensor in a file.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, product
from typing import Any

import numpy as np

from hotreload.errors import BadRequest, show_value

_TINY = np.finfo(np.float32).tiny
"""The least number that all devices compute with: some round a smaller one to zero."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A change of an array's axes, and by a factor of its values."""

    parts: tuple[tuple[int, ...], ...]
    """Lengths that each given axis is first divided into; most stay whole."""
    order: tuple[int, ...]
    """These parts in their new order."""
    joined: tuple[int, ...]
    """Number of them that make each axis of the result."""
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        lengths = self._lengths
        left = [lengths[part] for part in self.order]
        return tuple(math.prod(left.pop(0) for _ in range(count)) for count in self.joined)

    def spread(self, of_result: Sequence[Any]) -> list[Any]:
        """Return for each given axis the label of the first of its parts in the result."""
        after = [
            each
            for count, said in zip(self.joined, of_result, strict=True)
            for each in (said, *[None] * (count - 1))
        ]
        of_parts = [after[self.order.index(part)] for part in range(len(self.order))]
        ends = accumulate(map(len, self.parts))
        return [of_parts[end - len(lengths)] for end, lengths in zip(ends, self.parts, strict=True)]

    def turn(self, array: Any) -> Any:
        """Return the array of numpy or JAX with its axes rearranged and the same values."""
        return array.reshape(self._lengths).transpose(self.order).reshape(self.shape)

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rearrange the array of numpy, multiply it in float32, and round once."""
        made: np.ndarray[Any, Any] = self.turn(array)
        if self.factor == 1:
            return made
        with np.errstate(all="ignore"):  # the checks find what is no number afterwards
            wide = made.astype(np.promote_types(made.dtype, np.float32))
            return _without_tiny(_without_tiny(wide) * self._factor).astype(made.dtype)

    @property
    def _factor(self) -> np.float32:
        return np.float32(self.factor)

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(length for lengths in self.parts for length in lengths)


@dataclass(frozen=True, eq=False, repr=False)
class ArrangedArray:
    """An array of numpy or JAX, and how it is to be arranged; nothing moves until it is read.

    One of a stack is the part of it at a place along each axis that stacks.
    """

    array: Any
    how: Arrangement
    """The arrangement of that part."""
    places: Mapping[int, int] = field(default_factory=dict)
    """The places by the number of the axis."""

    @property
    def dtype(self) -> Any:
        """The array's own."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.how.shape

    @property
    def index(self) -> tuple[int | slice, ...]:
        """The part's place in its stack."""
        return tuple(self.places.get(at, slice(None)) for at in range(len(self.array.shape)))


def plain(array: Any) -> Any:
    """Return the array itself, also of an `ArrangedArray`; of one in a stack the whole stack."""
    return array.array if isinstance(array, ArrangedArray) else array


def of_stack(array: Any, held: Any) -> Any:
    """Take from what holds an array, or the stack that it is in, the array itself."""
    return held[array.index] if isinstance(array, ArrangedArray) and array.places else held


def is_within_reach(array: Any) -> bool:
    """Say of an array of JAX if its devices can take it out of its stack, each for itself."""
    if not isinstance(array, ArrangedArray):
        return True
    stack = array.array
    held = stack.sharding.shard_shape(stack.shape)
    return all(held[axis] == stack.shape[axis] for axis in array.places)


def as_in_a_file(array: Any, held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values of an array, arranged if it is an `ArrangedArray`."""
    return array.how.apply(held) if isinstance(array, ArrangedArray) else held


def _without_tiny(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(np.abs(values) < _TINY, np.copysign(values.dtype.type(0), values), values)


# --- how an arrangement is spelt ----------------------------------------------------------------

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
            words = f"{show_value(spelt)} is no arrangement of axes for {show_value(name)}"
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
    raise BadRequest(
        f"{show_value(all_of_it)} is no arrangement of axes, as 'd n h -> (n h) d' is one"
    )


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
