"""Rules by which a leaf is made of a checkpoint's tensor: turned, padded, repeated, cast.

A rule is data: it is applied to a tensor's bytes when they are loaded, and read backwards when a
leaf is measured, so that the same numbers come out of the file and of the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotreload.types import TensorSpec

Array = np.ndarray[Any, Any]
ArrayShape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """A change of the attention heads that lie side by side along an axis of a tensor."""

    axis: int
    count: int
    length: int
    padded: int
    """Length of each in the leaf; the rest is zeros."""
    copies: int = 1
    """Number of times that each stands in the leaf, one beside the other."""
    empty: int = 0
    """Number of heads of zeros that stand behind them."""

    @property
    def leaf_length(self) -> int:
        """Length of the axis in the leaf."""
        return (self.count * self.copies + self.empty) * self.padded

    def apply(self, tensor: Any) -> Any:
        """Return the tensor, of numpy or JAX, with the leaf's heads, in memory of its own."""
        xp, axis = tensor.__array_namespace__(), self.axis
        before, after = tensor.shape[:axis], tensor.shape[axis + 1 :]
        heads = tensor.reshape(*before, self.count, self.length, *after)
        made = xp.repeat(heads, self.copies, axis=axis)
        zeros = [(0, 0)] * made.ndim
        zeros[axis : axis + 2] = (0, self.empty), (0, self.padded - self.length)
        made = xp.pad(made, zeros) if any(map(any, zeros)) else made
        return made.reshape(*before, self.leaf_length, *after)

    def restore(self, made: Any) -> Any:
        """Return the tensor that a leaf's array was made of, as an array of numpy or JAX."""
        before, after = made.shape[: self.axis], made.shape[self.axis + 1 :]
        heads = made.reshape(*before, -1, self.padded, *after)
        whole = (slice(None),) * len(before)
        kept = heads[(*whole, slice(0, self.count * self.copies, self.copies), slice(self.length))]
        return kept.reshape(*before, self.count * self.length, *after)


@dataclass(frozen=True, slots=True)
class Rule:
    """The way from one tensor to a leaf, or to an expert's share of one."""

    shape: ArrayShape
    """The tensor's, in the file."""
    heads: Heads | None = None
    axes: tuple[int, ...] | None = None
    """The tensor's axes in the order in which the leaf has them; None keeps them."""

    @property
    def leaf_shape(self) -> ArrayShape:
        """The shape of the leaf, or of the expert's share, that the rule makes."""
        shape = list(self.shape)
        if self.heads is not None:
            shape[self.heads.axis] = self.heads.leaf_length
        return tuple(shape[axis] for axis in self.axes or range(len(shape)))

    @property
    def moves_nothing(self) -> bool:
        """True if the leaf has the tensor's elements in the file's order, and no others."""
        return self.heads is None and self.axes is None

    def apply(self, tensor: Any) -> Any:
        """Make the leaf's array, of numpy or JAX; it may be a view of the tensor's memory."""
        made = tensor if self.heads is None else self.heads.apply(tensor)
        return made if self.axes is None else made.transpose(self.axes)

    def restore(self, made: Any) -> Any:
        """Return the tensor that a leaf's array was made of, as an array of numpy or JAX."""
        if self.axes is not None:
            made = made.transpose(tuple(self.axes.index(axis) for axis in range(len(self.axes))))
        return made if self.heads is None else self.heads.restore(made)


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A tensor that a leaf is made of: all of it, or one expert's share of it."""

    tensor: str
    rule: Rule
    expert: int | None = None


Ingredients = Mapping[str, tuple[Ingredient, ...]]
"""The parts of each leaf, by its path."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tensors of a checkpoint, which leaves they make, and how."""

    targets: Mapping[str, tuple[str, ...]] = field(repr=False)
    """The leaves that upstream's loader makes of each tensor."""
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    ignorable: frozenset[str]
    parts: Ingredients = field(default_factory=dict, repr=False)
    """Of the leaves that rules can make."""
    why_not: str | None = None
    """Reason why rules cannot say how some leaf is made; None when they can."""
