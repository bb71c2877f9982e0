"""Makes leaves of arrays of JAX where they lie: on accelerators, or in the host's memory.

Every leaf is a copy: the caller may delete, donate or overwrite its arrays afterwards. An array of
JAX never changes while it is read: its figures are the leaf's. On accelerators compiled programs
make the leaves, and only figures come to the host.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hotreload.checkpoint.file_reader import Cancelled, Changed
from hotreload.engine.weights.leaf.differences import change_by, figures_of_change
from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredient, Ingredients, Rule
from hotreload.engine.weights.leaf.leaves import freely_split
from hotreload.engine.weights.leaf.measures import Figures, Measured, One, figures_of, one_of
from hotreload.engine.weights.leaf.on_device import split_like
from hotreload.engine.weights.load.checked_bytes import words_for
from hotreload.engine.weights.load.own import DTYPES, Made, Reader, Recipe, batches
from hotreload.engine.weights.memory.host_arrays import is_on_host
from hotreload.errors import TryAgain
from hotreload.types import IN_MEMORY, Checkpoint

LEAVES_AT_ONCE = 64
BYTES_AT_ONCE = 1 << 28
"""Leaves that are asked for their figures at once, and about how many bytes they have: as much may
lie there twice where the arrays lie elsewhere, or are split otherwise."""
LeafPart = tuple[Rule, int | None, Any]
"""A part of a leaf as a compiled program knows it: its rule, the expert, and how the array is
arranged first, if at all."""
_UNSIGNED = {2: jnp.uint16, 4: jnp.uint32}


class InDoubt(TryAgain):
    """The figures of a leaf leave open if its values are good: each value must be checked."""


class Borrower(Reader):
    """Makes leaves of arrays in the host's memory, read where they lie; belongs to one thread."""

    def make_leaves(self, recipes: Sequence[Recipe]) -> list[Made]:
        """Make leaves of these arrays, each placed like its live one; InDoubt if one has NaN."""
        made = super().make_leaves(recipes)
        for (parts, _), each in zip(recipes, made, strict=True):
            _check_finite(parts, each.one)
        return made

    def borrow(self, part: Ingredient) -> tuple[Array, Iterator[Array]]:
        """Return the tensor as a file would have it, in the caller's memory if it lies there so."""
        if self._cancel.is_set():
            raise Cancelled
        with words_for(IN_MEMORY):
            memory = self._checkpoint.memory.bytes_of(part.tensor)
        self._report(len(memory))
        tensor: Array = memory.view(self._stored_dtype(part)).reshape(part.rule.shape)
        return tensor, iter([tensor])

    def read_into(self, memory: Array, part: Ingredient) -> Iterator[Array]:
        """Copy the tensor into memory that a leaf may keep."""
        tensor, pieces = self.borrow(part)
        memory.view(tensor.dtype).reshape(tensor.shape)[...] = tensor
        return pieces

    def _ring_for(self, part: Ingredient, live: jax.Array) -> None:
        """JAX takes it from the caller's memory: to copy it into a ring would be as much work."""


class Copier:
    """Makes leaves of arrays on accelerators, there; belongs to one thread."""

    def __init__(
        self, checkpoint: Checkpoint, cancel: threading.Event, report: Callable[[int], None]
    ) -> None:
        """`report` is called with the number of bytes of each tensor that has been copied."""
        self._cancel = cancel
        self._report = report
        with words_for(IN_MEMORY):
            self._arrays: dict[str, jax.Array] = checkpoint.memory.by_name()
        self._arrangements: dict[str, Any] = checkpoint.memory.arrangements
        self._places: dict[str, Mapping[int, int]] = checkpoint.memory.places

    def make_leaves(self, recipes: Sequence[Recipe]) -> list[Made]:
        """Make leaves of these arrays, each placed like its live one; InDoubt if one has NaN."""
        if self._cancel.is_set():
            raise Cancelled
        with words_for(IN_MEMORY), self._raise_if_gone():
            begun = [self._begin(*recipe) for recipe in recipes]
            computed = jax.device_get([figures for _, figures in begun])
            jax.block_until_ready([leaf for leaf, _ in begun])  # type: ignore[no-untyped-call]
        return [
            self._judge(parts, leaf, *figures)
            for (parts, _), (leaf, _), figures in zip(recipes, begun, computed, strict=True)
        ]

    def close(self) -> None:
        """Let go of the arrays."""
        self._arrays = {}

    def _begin(self, parts: Sequence[Ingredient], live: jax.Array) -> tuple[jax.Array, Any]:
        """Begin to compute a leaf and its figures on its devices; return both unfinished."""
        free = freely_split(live)
        given = [self._take(part.tensor) for part in parts]
        how = [self._arrangements.get(part.tensor) for part in parts]
        places = [_place_of(*each, live) for each in zip(parts, given, how, strict=True)]
        tensors = jax.device_put(given, places)
        shares = tuple((p.rule, p.expert, each) for p, each in zip(parts, how, strict=True))
        leaf, *figures = _leaf_program(free.sharding)(tensors, free, shares)
        return jax.device_put(leaf, live.sharding), figures

    def _take(self, tensor: str) -> jax.Array | None:
        """Return a tensor's array, copied out if it is part of a stack; None if it is left out."""
        array, places = self._arrays.get(tensor), self._places.get(tensor)
        return _part(array, tuple(places), [*places.values()]) if places else array

    def _judge(
        self, parts: Sequence[Ingredient], leaf: jax.Array, measured: Sequence[Figures], change: Any
    ) -> Made:
        one = one_of(parts, measured)
        _check_finite(parts, one)
        for part in parts:
            if part.tensor in self._arrays:
                self._report(self._arrays[part.tensor].dtype.itemsize * math.prod(part.rule.shape))
        return Made(leaf, one, change_by(*change))

    @contextmanager
    def _raise_if_gone(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as fault:
            gone = [name for name, array in self._arrays.items() if array.is_deleted()]
            if not gone:
                raise
            raise Changed(f"{gone[0]} cannot be read: it was deleted or donated") from fault


def _check_finite(parts: Sequence[Ingredient], one: One) -> None:
    if not math.isfinite(one.rms):
        raise InDoubt(f"{parts[0].tensor} may hold NaN or infinities")


def maker_of(checkpoint: Checkpoint) -> tuple[type[Reader | Copier], Callable[..., Any]]:
    """Return the class that makes a checkpoint's leaves, and how threads divide its places."""
    if not checkpoint.is_unread:
        return Reader, batches
    return (Borrower, batches) if checkpoint.memory.are_on_host else (Copier, groups)


def groups(places: Sequence[int], leaves: Sequence[Any]) -> Iterator[list[int]]:
    """Divide the places of a set into those that are made together."""
    group, size = list[int](), 0
    for place in places:
        if group and (len(group) == LEAVES_AT_ONCE or size + leaves[place].nbytes > BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(place)
        size += leaves[place].nbytes
    if group:
        yield group


def are_taken_unread(
    checkpoint: Checkpoint, parts: Ingredients, leaves: Mapping[str, jax.Array | None]
) -> bool:
    """Say if leaves made of these arrays in place equal those that would be made by reading them.

    A leaf is None if its memory was given back: then no new leaf can be placed like it.
    """
    stored = {name: DTYPES.get(spec.dtype) for name, spec in checkpoint.tensors.items()}
    memory = checkpoint.memory
    if not all(isinstance(array, jax.Array) for array in memory.by_name().values()):
        return False
    if memory.are_on_host:
        return None not in leaves.values()
    return (memory.are_on_devices and memory.are_within_reach) and all(
        _is_made_on_device(leaf, [stored[p.tensor] for p in parts[path] if p.tensor in stored])
        for path, leaf in leaves.items()
    )


@partial(jax.jit, static_argnums=1)
def _part(stack: jax.Array, axes: tuple[int, ...], places: Sequence[Any]) -> jax.Array:
    for axis, place in sorted(zip(axes, places, strict=True), key=itemgetter(0), reverse=True):
        stack = jax.lax.dynamic_index_in_dim(stack, place, axis, keepdims=False)
    return stack


def _is_made_on_device(leaf: jax.Array | None, stored: Sequence[Any]) -> bool:
    if leaf is None or is_on_host(leaf) or not leaf.committed or not leaf.is_fully_addressable:
        return False
    return leaf.dtype.itemsize in _UNSIGNED and all(
        dtype == leaf.dtype or (dtype == np.float32 and leaf.dtype == jnp.bfloat16)
        for dtype in stored
    )


def check_not_empty(checkpoint: Checkpoint, measured: Measured) -> None:
    """InDoubt of a whole set without a value that is not zero."""
    if not checkpoint.is_part and not any(measured.rms.values()):
        raise InDoubt("every value may be zero")


def _place_of(
    part: Ingredient, array: jax.Array | None, how: Any, live: jax.Array
) -> jax.sharding.Sharding | None:
    """Place an array so that its part of the leaf can be made there.

    It is split as the leaf is, or lies whole on each device where its own axes cannot be.
    """
    where = split_like(live, part)
    if how is None or array is None or not isinstance(where, NamedSharding):
        return where
    of_tensor = (*where.spec, *[None] * len(part.rule.shape))[: len(part.rule.shape)]
    split = PartitionSpec(*how.spread(of_tensor))  # type: ignore[no-untyped-call]
    try:
        NamedSharding(where.mesh, split).shard_shape(array.shape)
    except ValueError:
        split = PartitionSpec()  # type: ignore[no-untyped-call]
    return NamedSharding(where.mesh, split)


@cache
def _leaf_program(sharding: jax.sharding.Sharding) -> Callable[..., Any]:
    return jax.jit(_make_leaf, static_argnums=2, out_shardings=(sharding, None, None))


def _make_leaf(
    tensors: Sequence[jax.Array | None], live: jax.Array, shares: tuple[LeafPart, ...]
) -> tuple[Any, ...]:
    """Return the leaf, the figures of each of its tensors, and those of its change.

    All is moved as whole numbers: nothing is rounded, and no small number becomes zero. An expert
    without a tensor keeps the live leaf's values.
    """
    figures, made = [], dict[int | None, Any]()
    for tensor, (rule, expert, how) in zip(tensors, shares, strict=True):
        if tensor is None:
            bits = rule.restore(_bits(live)[expert])
        else:
            bits = _as_served(tensor, live, 1.0 if how is None else how.factor)
            bits = bits if how is None else how.turn(bits)
        figures.append(figures_of(jax.lax.bitcast_convert_type(bits, live.dtype)))
        made[expert] = rule.apply(bits)
    stacked = made[None] if None in made else jnp.stack([made[at] for at in range(len(made))])
    leaf = jax.lax.bitcast_convert_type(jnp.copy(stacked), live.dtype)
    return leaf, figures, figures_of_change(leaf, live)


def _as_served(tensor: jax.Array, live: jax.Array, factor: float) -> jax.Array:
    """Return a tensor's bits in the live leaf's dtype, with all values multiplied by `factor`.

    A product is rounded to the tensor's own dtype first, as by the host.
    """
    if factor != 1:
        product = _without_tiny(_without_tiny(tensor.astype(jnp.float32)) * np.float32(factor))
        bits = _bits(product) if tensor.dtype == jnp.float32 else round_bits(product)
        tensor = jax.lax.bitcast_convert_type(bits, tensor.dtype)
    return _bits(tensor) if tensor.dtype == live.dtype else round_bits(tensor)


def _without_tiny(values: jax.Array) -> jax.Array:
    """Return the values with zeros for denormal numbers: some devices take those for zero."""
    bits = _bits(values)
    is_tiny = (bits & np.uint32(0x7F800000)) == 0
    kept = jnp.where(is_tiny, bits & np.uint32(0x80000000), bits)
    return jax.lax.bitcast_convert_type(kept, values.dtype)


def round_bits(tensor: jax.Array) -> jax.Array:
    """Return float32 numbers as bits of bfloat16, rounded to nearest even, as the host does."""
    bits = _bits(tensor)
    upper = bits >> np.uint32(16)
    nearest = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    nan = (upper & np.uint32(0x8000)) | np.uint32(0x7FC0)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return jnp.where(is_nan, nan, nearest).astype(jnp.uint16)


def _bits(tensor: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(tensor, _UNSIGNED[tensor.dtype.itemsize])
