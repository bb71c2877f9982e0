"""Turns tensors into leaves on their devices: the host hands bytes over as a file has them.

`put` places an array on the devices of a leaf, in the file's order. `make_leaf` and `add_to_stack`
take such an array, or the tensor's bits as rows of equal length, and return the leaf, figures of
the tensor, which `measures.one_of` reads, and the sums of the bytes that arrived. A program is
compiled for each rule, shape, dtype and sharding, when it is first needed: leaves that differ in
their place alone share one. Where the device is the host this is the slower way.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hotreload.checkpoint import fingerprint
from hotreload.engine.weights.leaf.differences import change_by, squares_of_change
from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredient, Rule
from hotreload.engine.weights.leaf.leaves import (
    freely_split,
    is_explicit,
    place_copy,
    without_types,
)
from hotreload.engine.weights.leaf.measures import (
    Figures,
    One,
    Sums,
    figures_of,
    one_of,
    sums_of,
)
from hotreload.engine.weights.memory.host_arrays import is_on_host
from hotreload.errors import TryAgain

Sharding = jax.sharding.Sharding


def pays_on_device(live: Any, stored: Any) -> bool:
    """Say if tensors of this dtype become a leaf like the live one on its device.

    Not where that is a CPU: of every shape, with both versions of JAX, a compiled program took
    longer than the host does on the way, up to twice as long (`make bench ARGS='-k turning'`).
    """
    return not is_on_host(live) and can_turn(live, stored)


def can_turn(live: Any, stored: Any) -> bool:
    """Say if a tensor can become a leaf on its device; a leaf of several hosts cannot."""
    # Without 64 bits JAX would cast on the way, and round twice.
    is_whole = live.is_fully_addressable and np.dtype(stored).itemsize <= WIDEST
    is_split = isinstance(live.sharding, NamedSharding)
    return is_whole and (is_split or len(live.devices()) == 1)


WIDEST = 4
"""Bytes of the largest element that JAX takes over as it is."""


def there_twice(leaves: Sequence[Any], threads: int) -> list[Any]:
    """Describe what turning needs on the devices beside the leaves: the tensor of one a thread."""
    large = [leaf for leaf in leaves if not is_on_host(leaf)]
    return sorted(large, key=lambda leaf: int(leaf.nbytes), reverse=True)[:threads]


def put(tensor: Array | jax.Array, part: Ingredient, live: Any) -> jax.Array:
    """Put the tensor on the leaf's devices, split as the leaf is; a CPU may share our memory."""
    if isinstance(tensor, jax.Array):  # it is there
        return tensor
    where = split_like(live, part)
    return jnp.asarray(tensor) if where is None else jax.device_put(tensor, where)


def keep_as_it_is(tensor: Array, live: Any) -> tuple[jax.Array, Figures, Sums]:
    """Make the leaf of a tensor that nothing moves or casts; return it with its figures."""
    leaf = place_copy(tensor, live.sharding if live.committed else None)
    figures = _figures(freely_split(leaf))
    return leaf, figures, figures[:-1]


def make_leaf(
    raw: jax.Array, rule: Rule, live: Any, stored: Any
) -> tuple[jax.Array, Figures, Sums]:
    """Make a tensor's leaf by its rule, like the live one; return it with the tensor's figures.

    `stored` is the tensor's dtype.
    """
    leaf, figures, sums = _leaf_program(rule, live.dtype, _free(live))(raw, stored)
    return _like(leaf, live), figures, sums


def empty_stack(live: Any) -> jax.Array:
    """Make a leaf like the live one, to be filled by `add_to_stack`."""
    return _zeros(live.shape, live.dtype, _free(live))()


def add_to_stack(
    stack: jax.Array, raw: jax.Array, part: Ingredient, live: Any, stored: Any
) -> tuple[jax.Array, Figures, Sums]:
    """Put an expert's tensor in its place in the stack; return it with the tensor's figures.

    The given stack may not be used any more: the returned one lies in its memory.
    """
    filled: tuple[jax.Array, Figures, Sums]
    filled = _stack_program(part.rule, live.dtype, _free(live))(
        stack, raw, np.int32(part.expert or 0), stored
    )
    return filled


def as_leaf(stack: jax.Array, live: Any) -> jax.Array:
    """Return the stack, once all its experts are in it, as a leaf like the live one."""
    return _like(stack, live)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A tensor on its devices: the sum of the bytes that were read, and figures from there."""

    part: Ingredient
    read: int
    figures: Figures
    sums: Sums


def finish_leaf(
    leaf: jax.Array, live: Any, arrived: Sequence[Arrived]
) -> tuple[jax.Array, One, float | None]:
    """Return a leaf once it is there, with its figures and, on devices, its distance from `live`.

    TryAgain if a tensor has other bytes there than were read. All is waited for at once: other
    steps may lie before each on the device.
    """
    change = None
    if isinstance(live, jax.Array) and not is_on_host(live):  # one may only be described
        change = squares_of_change(freely_split(leaf), freely_split(live))
    figures, sums, change = jax.device_get(
        ([each.figures for each in arrived], [each.sums for each in arrived], change)
    )
    for each, lanes in zip(arrived, sums, strict=True):
        if fingerprint.join_lanes(lanes) != each.read:
            raise TryAgain(
                f"{each.part.tensor} arrived on its device with other bytes than were read: "
                "if that happens again, look at that device's memory",
                code="copy_differs",
            )
    one = one_of([each.part for each in arrived], figures)
    return leaf.block_until_ready(), one, change and change_by(*change)


# --- how arrays are split over devices --------------------------------------------------------


def _free(live: Any) -> Sharding | None:
    """Return the sharding for programs, in which no step has to say how its result is split."""
    return without_types(live.sharding) if live.committed else None


def _like(leaf: jax.Array, live: Any) -> jax.Array:
    """Return the same memory under the live leaf's sharding: with another the model recompiles."""
    return jax.device_put(leaf, live.sharding) if is_explicit(live.sharding) else leaf


def split_like(live: Any, part: Ingredient) -> Sharding | None:
    """Return how to split the tensor: no device needs another's part, if that is possible."""
    where, rule = _free(live), part.rule
    if not isinstance(where, NamedSharding):
        return where
    if rule.heads is not None:  # a device's heads in the leaf may be others' in the file
        return NamedSharding(where.mesh, _spec())
    of_leaf = (*where.spec, *[None] * (len(live.shape) - len(where.spec)))
    of_leaf = of_leaf if part.expert is None else of_leaf[1:]
    axes = rule.axes or range(len(rule.shape))
    of_tensor = dict(zip(axes, of_leaf, strict=True))
    return NamedSharding(where.mesh, _spec(*(of_tensor[at] for at in sorted(of_tensor))))


def _spec(*axes: Any) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


# --- the programs -----------------------------------------------------------------------------

_figures: Callable[[jax.Array], Figures] = jax.jit(figures_of)


@cache
def _leaf_program(rule: Rule, dtype: Any, where: Sharding | None) -> Callable[..., Any]:
    def turn(raw: jax.Array, stored: Any) -> tuple[jax.Array, Figures, Sums]:
        raw = _as_stored(raw, rule, stored)
        tensor = raw.astype(dtype)
        return rule.apply(tensor), figures_of(tensor), sums_of(raw)

    return jax.jit(turn, static_argnums=1, out_shardings=(where, None, None))


@cache
def _stack_program(rule: Rule, dtype: Any, where: Sharding | None) -> Callable[..., Any]:
    def put_in(
        stack: jax.Array, raw: jax.Array, at: jax.Array, stored: Any
    ) -> tuple[jax.Array, Figures, Sums]:
        raw = _as_stored(raw, rule, stored)
        tensor = raw.astype(dtype)
        filled = jax.lax.dynamic_update_index_in_dim(stack, rule.apply(tensor), at, 0)
        return filled, figures_of(tensor), sums_of(raw)

    return jax.jit(put_in, static_argnums=3, donate_argnums=0, out_shardings=(where, None, None))


def _as_stored(raw: jax.Array, rule: Rule, stored: Any) -> jax.Array:
    """Return a tensor that came as rows of bits as the file has it, without what fills them up."""
    if raw.dtype == stored:  # it came in one piece, and may be split over devices
        return raw
    bits = raw.reshape(-1)[: math.prod(rule.shape)].reshape(rule.shape)
    return jax.lax.bitcast_convert_type(bits, stored)


@cache
def _zeros(shape: tuple[int, ...], dtype: Any, where: Sharding | None) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=where)
