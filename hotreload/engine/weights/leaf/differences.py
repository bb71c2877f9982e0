"""Compares leaves: with others of the same place, and the copies of a number within one.

A leaf's checksum is that of the tensor it is made of, so it is the same on any number of devices:
one copy of each number is in it. Memory that is damaged may hold another copy.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredients, Rule
from hotreload.engine.weights.leaf.leaves import freely_split
from hotreload.engine.weights.leaf.measures import sums_of
from hotreload.engine.weights.memory.host_arrays import is_on_host, on_host
from hotreload.types import LoadFacts

SAMPLE = 1 << 15
"""Elements of a leaf that are looked at to say how much it changed."""
LARGEST_CHANGE = 1e6
"""The change that is reported if the change is larger, or is no number."""


def change_of(new: jax.Array | Array, live: jax.Array) -> float:
    """Return the root mean square of the difference over that of the live leaf, from samples."""
    steps = _steps(new.shape)
    one, other = _sample(new, steps), _sample(live, steps)
    with np.errstate(all="ignore"):
        return change_by(*(np.vdot(each, each) for each in (one - other, other, one)))


def figures_of_change(new: jax.Array, live: jax.Array) -> tuple[jax.Array, ...]:
    """Return the sums of squares for `change_by`, to be computed on the leaves' devices."""
    every = _every(_steps(new.shape))
    one, other = new[every].astype(jnp.float32), live[every].astype(jnp.float32)
    return ((one - other) ** 2).sum(), (other**2).sum(), (one**2).sum()


squares_of_change: Callable[..., tuple[jax.Array, ...]] = jax.jit(figures_of_change)


def change_by(*squares: Any) -> float:
    """Return the root mean square of a difference over that of the live leaf.

    Given are the sums of squares of the difference, of the live sample and of the new one.
    """
    difference, before, after = (math.sqrt(abs(float(each))) for each in squares)
    if difference == 0:  # none in the sample, though there is one
        return 1 / LARGEST_CHANGE
    change = difference / (before or after or math.nan)
    return min(change, LARGEST_CHANGE) if math.isfinite(change) else LARGEST_CHANGE


def with_changes(loading: LoadFacts, changes: Mapping[str, float]) -> LoadFacts:
    """Return `loading` with the number of changed leaves and the largest change."""
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
    """Return, for each axis, the distance between two elements of the sample."""
    left, steps = math.prod(shape) / SAMPLE, []
    for length in shape:
        steps.append(max(1, min(length, math.floor(left))))
        left /= steps[-1]
    return tuple(steps)


def _sample(leaf: jax.Array | Array, steps: tuple[int, ...]) -> Array:
    if isinstance(leaf, jax.Array) and not is_on_host(leaf):
        return np.asarray(jax.device_get(_take_sample(freely_split(leaf), steps)), np.float32)
    held = on_host(leaf) if isinstance(leaf, jax.Array) else leaf
    return held[_every(steps)].astype(np.float32)


def _every(steps: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None, None, step) for step in steps)


@partial(jax.jit, static_argnums=1)
def _take_sample(leaf: jax.Array, steps: tuple[int, ...]) -> jax.Array:
    return leaf[_every(steps)]


def equal_bits(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return whether two leaves hold the same bits, to be computed on their devices."""
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[one.dtype.itemsize]
    if one.dtype == jnp.bool_:
        return jnp.all(one == other)
    as_bits = partial(jax.lax.bitcast_convert_type, new_dtype=bits)
    return jnp.all(as_bits(one) == as_bits(other))


_equal = jax.jit(equal_bits)


def leaves_whose_copies_differ(named: Mapping[str, jax.Array], parts: Ingredients) -> Iterator[str]:
    """Yield the path of each leaf with copies that differ: of one head, or on two devices.

    A padded head with other numbers than zeros behind its end counts as one that differs.
    """
    for path, leaf in named.items():
        if _devices_differ(leaf) or any(_heads_differ(leaf, p.rule) for p in parts.get(path, ())):
            yield path


def _heads_differ(leaf: jax.Array, rule: Rule) -> bool:
    return rule.heads is not None and not bool(_is_equal_anew(freely_split(leaf), rule))


@partial(jax.jit, static_argnums=1)
def _is_equal_anew(leaf: jax.Array, rule: Rule) -> jax.Array:
    return equal_bits(rule.apply(rule.restore(leaf)), leaf)


Copies = Mapping[str, list[list[str]]]
"""By a leaf's path: of each copy which part it is, and its number."""


def copies_here(named: Mapping[str, jax.Array]) -> Copies:
    """Return this host's sums of the leaves that have one part on several devices."""
    return {path: _number_copies(leaf) for path, leaf in named.items() if _has_copies(leaf)}


def find_differing(of_hosts: Iterable[Copies]) -> set[str]:
    """Return the paths of the leaves whose copies differ; each host gives the sums it has."""
    found: dict[tuple[str, str], str] = {}
    here = ((path, *copy) for each in of_hosts for path, copies in each.items() for copy in copies)
    return {path for path, part, number in here if found.setdefault((path, part), number) != number}


def _number_copies(leaf: jax.Array) -> list[list[str]]:
    shards = leaf.addressable_shards
    return [[str(each.index), str(jax.device_get(_sums(each.data)))] for each in shards]


_sums = jax.jit(sums_of)


def _has_copies(leaf: jax.Array) -> bool:
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    return len({str(part) for part in parts.values()}) != len(parts)


def _devices_differ(leaf: jax.Array) -> bool:
    """Say if two devices hold different bits for the same part of the leaf."""
    if not _has_copies(leaf):
        return False
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    found: dict[str, bytes] = {}
    for shard in _sum_up_apart(leaf.sharding)(leaf).addressable_shards:
        sums = np.asarray(shard.data).tobytes()
        if found.setdefault(str(parts[shard.device]), sums) != sums:
            return True
    return False


@cache
def _sum_up_apart(sharding: Any) -> Any:
    """Compile a program in which each device sums up its own part of a leaf.

    The leaf itself is not asked for its shards: it would keep them.
    """

    def sum_up(part: jax.Array) -> jax.Array:
        return jnp.stack(sums_of(part))[None]

    mesh = sharding.mesh
    of_each = PartitionSpec(mesh.axis_names)  # type: ignore[no-untyped-call]
    each = jax.shard_map(
        sum_up, mesh=mesh, in_specs=sharding.spec, out_specs=of_each, check_vma=False
    )
    return jax.jit(each)
