"""Turns tensors into leaves on their devices: the host hands bytes over as a file has them.

`turned` and `stacked` take an array that lies on the devices of a leaf in the file's order (`put`
places one so), and return the leaf and figures of the tensor, which `measuring.one_of` reads. A
program is compiled for each rule, shape, dtype and sharding, when it is first asked for: leaves
that differ in their place alone share one. Where the device is the host this is the slower way.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredient, Rule
from hotreload.engine.weights.leaf.leaves import freely_split, is_explicit, placed, untyped
from hotreload.engine.weights.leaf.measuring import Figures, figures_of
from hotreload.engine.weights.memory.host_arrays import is_on_host

Sharding = jax.sharding.Sharding


def pays_on_device(live: Any, stored: Any) -> bool:
    """Say if tensors of this dtype become a leaf like the live one on its device.

    Not where that is a CPU: of every shape, with both versions of JAX, a compiled program took
    longer than the host does on the way, up to twice as long (`make bench ARGS='-k turning'`).
    """
    return not is_on_host(live) and can_turn(live, stored)


def can_turn(live: Any, stored: Any) -> bool:
    """Say if it can be done at all: of other hosts' parts nothing is computed here alone."""
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


def put(tensor: Array, part: Ingredient, live: Any) -> jax.Array:
    """The tensor on the devices of the leaf, split as its leaf is; in memory that may be ours."""
    where = split_like(live, part)
    return jnp.asarray(tensor) if where is None else jax.device_put(tensor, where)


def kept_as_it_is(tensor: Array, live: Any) -> tuple[jax.Array, Figures]:
    """The leaf of a tensor that nothing moves or casts, and figures of it."""
    leaf = placed(tensor, live.sharding if live.committed else None)
    return leaf, _figures(freely_split(leaf))


def turned(raw: jax.Array, rule: Rule, live: Any) -> tuple[jax.Array, Figures]:
    """The leaf that a rule makes of a tensor, like the live one, and figures of the tensor."""
    leaf, figures = _turning(rule, live.dtype, _free(live))(raw)
    return _like(leaf, live), figures


def empty_stack(live: Any) -> jax.Array:
    """A leaf like the live one, to be filled by `stacked`."""
    return _zeros(live.shape, live.dtype, _free(live))()


def stacked(
    stack: jax.Array, raw: jax.Array, part: Ingredient, live: Any
) -> tuple[jax.Array, Figures]:
    """The stack with an expert's tensor in its place, and figures of the tensor.

    The stack that is given is given up: the next one lies in its memory.
    """
    filled: tuple[jax.Array, Figures]
    filled = _stacking(part.rule, live.dtype, _free(live))(stack, raw, np.int32(part.expert or 0))
    return filled


def as_leaf(stack: jax.Array, live: Any) -> jax.Array:
    """The stack, once all its experts are in it, as the leaf that is like the live one."""
    return _like(stack, live)


# --- how arrays are split over devices --------------------------------------------------------


def _free(live: Any) -> Sharding | None:
    """The sharding for programs: of 0.1.0rc0's mesh each step in one would have to say how."""
    return untyped(live.sharding) if live.committed else None


def _like(leaf: jax.Array, live: Any) -> jax.Array:
    """The same memory under the live leaf's own sharding: with another the model recompiles."""
    return jax.device_put(leaf, live.sharding) if is_explicit(live.sharding) else leaf


def split_like(live: Any, part: Ingredient) -> Sharding | None:
    """The way to split the tensor: so that no device needs what another has, if that can be."""
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
def _turning(rule: Rule, dtype: Any, where: Sharding | None) -> Callable[..., Any]:
    def turn(raw: jax.Array) -> tuple[jax.Array, Figures]:
        tensor = raw.astype(dtype)
        return rule.applied(tensor), figures_of(tensor)

    return jax.jit(turn, out_shardings=(where, None))


@cache
def _stacking(rule: Rule, dtype: Any, where: Sharding | None) -> Callable[..., Any]:
    def put_in(stack: jax.Array, raw: jax.Array, at: jax.Array) -> tuple[jax.Array, Figures]:
        tensor = raw.astype(dtype)
        filled = jax.lax.dynamic_update_index_in_dim(stack, rule.applied(tensor), at, 0)
        return filled, figures_of(tensor)

    return jax.jit(put_in, donate_argnums=0, out_shardings=(where, None))


@cache
def _zeros(shape: tuple[int, ...], dtype: Any, where: Sharding | None) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=where)
