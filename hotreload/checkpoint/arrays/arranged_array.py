"""Presents an array in a file's order of axes, though its owner has another order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np

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


class ArrangedArray:
    """An array of numpy or JAX, and how it is to be arranged; nothing moves until it is read.

    One of a stack is the part of it at a place along each axis that stacks.
    """

    def __init__(
        self, array: Any, how: Arrangement, places: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """`how` is for that part; `places` are by the number of the axis."""
        self.array = array
        self.how = how
        self.places = places

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
