"""Checks that the copies of a number within a leaf are the same.

A leaf's checksum is that of the tensor it is made of, so it is the same on any number of devices:
one copy of each number is in it. Memory that is damaged may hold another.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from hotreload.engine.weights.changes import equal_bits
from hotreload.engine.weights.leaves import freely_split
from hotreload.engine.weights.measuring import sums_of
from hotreload.engine.weights.rules import Ingredients, Rule


def leaves_whose_copies_differ(named: Mapping[str, jax.Array], parts: Ingredients) -> Iterator[str]:
    """The paths of the leaves whose copies differ, of a head in it or on the devices that hold it.

    Of a padded head, also those with something else than zeros behind it.
    """
    for path, leaf in named.items():
        if _devices_differ(leaf) or any(_heads_differ(leaf, p.rule) for p in parts.get(path, ())):
            yield path


def _heads_differ(leaf: jax.Array, rule: Rule) -> bool:
    return rule.heads is not None and not bool(_made_anew_is_equal(freely_split(leaf), rule))


@partial(jax.jit, static_argnums=1)
def _made_anew_is_equal(leaf: jax.Array, rule: Rule) -> jax.Array:
    return equal_bits(rule.applied(rule.restored(leaf)), leaf)


Copies = Mapping[str, list[list[str]]]
"""By a leaf's path: of each copy which part it is, and its number."""


def copies_here(named: Mapping[str, jax.Array]) -> Copies:
    """Sums on this host, of the leaves of which several devices hold the same part."""
    return {path: _numbered(leaf) for path, leaf in named.items() if _has_copies(leaf)}


def differing(told: Iterable[Copies]) -> set[str]:
    """The paths of the leaves whose copies differ, of what each host has."""
    found: dict[tuple[str, str], str] = {}
    here = ((path, *copy) for each in told for path, copies in each.items() for copy in copies)
    return {path for path, part, number in here if found.setdefault((path, part), number) != number}


def _numbered(leaf: jax.Array) -> list[list[str]]:
    shards = leaf.addressable_shards
    return [[str(each.index), str(jax.device_get(_sums(each.data)))] for each in shards]


_sums = jax.jit(sums_of)


def _has_copies(leaf: jax.Array) -> bool:
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    return len({str(part) for part in parts.values()}) != len(parts)


def _devices_differ(leaf: jax.Array) -> bool:
    """Say if two devices that hold the same part of it hold other bits."""
    if not _has_copies(leaf):
        return False
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    found: dict[str, bytes] = {}
    for shard in _summed_apart(leaf.sharding)(leaf).addressable_shards:
        told = np.asarray(shard.data).tobytes()
        if found.setdefault(str(parts[shard.device]), told) != told:
            return True
    return False


@cache
def _summed_apart(sharding: Any) -> Any:
    """Each device sums up what it holds; the leaf is not asked for its shards, and keeps none."""

    def summed(part: jax.Array) -> jax.Array:
        return jnp.stack(sums_of(part))[None]

    mesh = sharding.mesh
    of_each = PartitionSpec(mesh.axis_names)  # type: ignore[no-untyped-call]
    each = jax.shard_map(
        summed, mesh=mesh, in_specs=sharding.spec, out_specs=of_each, check_vma=False
    )
    return jax.jit(each)
