"""Tells how far leaves are from others of the same place: not at all, or how much."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.host_arrays import is_on_host, on_host
from hotreload.engine.weights.leaves import freely_split
from hotreload.engine.weights.rules import Array
from hotreload.types import Loading

SAMPLE = 1 << 15
"""Elements of a leaf that are looked at to say how much it changed."""
LARGEST = 1e6
"""The change that is told when it is larger, or no number."""


def change_of(new: jax.Array | Array, live: jax.Array) -> float:
    """The root mean square of the difference over that of the live leaf, from a sample of both."""
    steps = _steps(new.shape)
    one, other = _sample(new, steps), _sample(live, steps)
    with np.errstate(all="ignore"):
        figures = ((one - other) ** 2).sum(), (other**2).sum(), (one**2).sum()
    difference, before, after = (math.sqrt(abs(float(each))) for each in figures)
    if difference == 0:  # none in the sample, though there is one
        return 1 / LARGEST
    change = difference / (before or after or math.nan)
    return min(change, LARGEST) if math.isfinite(change) else LARGEST


def with_changes(loading: Loading, changes: Mapping[str, float]) -> Loading:
    """The same, with how far each leaf is from the live one."""
    changed = {path: change for path, change in changes.items() if change}
    most = max(changed, key=changed.__getitem__, default="")
    largest = changed.get(most, 0.0)
    return replace(loading, leaves_changed=len(changed), largest_change=largest, most_changed=most)


def same_bits(one: jax.Array, other: jax.Array) -> bool:
    """Say if two leaves hold the same bits, NaN too."""
    if is_on_host(one):
        return np.array_equal(_bytes(on_host(one)), _bytes(on_host(other)))
    return bool(_equal(one, other))


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Every how many rows, columns … are looked at."""
    left, steps = math.prod(shape) / SAMPLE, []
    for length in shape:
        steps.append(max(1, min(length, math.floor(left))))
        left /= steps[-1]
    return tuple(steps)


def _sample(leaf: jax.Array | Array, steps: tuple[int, ...]) -> Array:
    if isinstance(leaf, jax.Array) and not is_on_host(leaf):
        return np.asarray(jax.device_get(_sliced(freely_split(leaf), steps)), np.float32)
    held = on_host(leaf) if isinstance(leaf, jax.Array) else leaf
    return held[_every(steps)].astype(np.float32)


def _every(steps: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None, None, step) for step in steps)


@partial(jax.jit, static_argnums=1)
def _sliced(leaf: jax.Array, steps: tuple[int, ...]) -> jax.Array:
    return leaf[_every(steps)]


def equal_bits(one: jax.Array, other: jax.Array) -> jax.Array:
    """The same, to be computed on their devices."""
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[one.dtype.itemsize]
    if one.dtype == jnp.bool_:
        return jnp.all(one == other)
    as_bits = partial(jax.lax.bitcast_convert_type, new_dtype=bits)
    return jnp.all(as_bits(one) == as_bits(other))


_equal = jax.jit(equal_bits)
