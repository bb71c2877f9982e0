"""Puts noise on some leaves of the live weights, to show that checksums change.

Equal noise on equal weights gives equal weights, whatever the sharding.
"""

import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.checkpoint.file_reader import Cancelled
from hotreload.engine.weights.leaf.leaf_rules import Ingredients, Rule
from hotreload.engine.weights.leaf.leaves import Layout, freely_split
from hotreload.engine.weights.leaf.measures import Measured, measure
from hotreload.engine.weights.load.upstream_loader import MOST_NAMED
from hotreload.engine.weights.memory.headroom import (
    check_headroom,
    raise_not_enough_memory,
    size_of,
)
from hotreload.engine.weights.memory.host_arrays import copy_to_host
from hotreload.engine.weights.staged_set import check_signatures
from hotreload.engine.weights.weights import Weights
from hotreload.errors import CheckpointIncompatible, CheckpointRejected
from hotreload.types import Noise

AT_WORK = 3
"""Copies of a leaf in float32 that may be there while noise is put on it."""


def with_noise(
    noise: Noise,
    *,
    layout: Layout,
    live: Weights,
    parts: Ingredients,
    cancel: threading.Event,
    to_host: bool = False,
) -> Weights:
    """Copy the live weights with noise on some leaves; on the device the others are shared."""
    keys = _keys_by_place(noise, layout, live.leaves)
    noisy = _Noisy(live, layout, parts, noise.scale, keys)
    made = noisy.to_host(cancel) if to_host else noisy.beside(cancel)
    try:
        _check_changed(noise, [layout.paths[place] for place in keys], made.measured, live.measured)
    except BaseException:
        made.drop()  # an error keeps the frames it passed, and they must not keep weights
        raise
    return made


def _keys_by_place(noise: Noise, layout: Layout, live: list[Any]) -> dict[int, jax.Array]:
    """Choose the places that get noise; return them with the random key of each.

    Leaves are chosen by path: another engine may list the same weights in another order.
    """
    able = [at for at in layout.places if jnp.issubdtype(live[at].dtype, jnp.floating)]
    if noise.num_leaves > len(able):
        raise CheckpointIncompatible(
            f"noise on {noise.num_leaves} leaves was asked for (num_leaves), "
            f"the model has {len(able)} that can take it"
        )
    able.sort(key=lambda place: layout.paths[place])
    chosen = random.Random(noise.seed).sample(range(len(able)), noise.num_leaves)
    key = jax.random.key(noise.seed)
    return {able[at]: jax.random.fold_in(key, at) for at in chosen}


class _Noisy:
    """A set of weights with noise; measures the noisy leaves, and copies the others' figures."""

    def __init__(
        self,
        live: Weights,
        layout: Layout,
        parts: Ingredients,
        scale: float,
        keys: Mapping[int, jax.Array],
    ) -> None:
        self._live = live
        self._layout = layout
        self._parts = parts
        self._scale = scale
        self._keys = keys
        self._sums, self._rms = dict(live.measured.sums), dict(live.measured.rms)
        self._measured = Measured(self._sums, self._rms)

    def beside(self, cancel: threading.Event) -> Weights:
        live = self._live.leaves
        check_headroom([live[place] for place in self._keys])
        leaves = list(live)
        try:
            with raise_not_enough_memory():
                for place in _until(cancel, self._keys):
                    leaves[place] = self._leaf(place)
            check_signatures(self._layout, leaves, live)
        except BaseException:
            leaves.clear()
            raise
        return Weights(leaves, self._measured, sources=self._sources())

    def to_host(self, cancel: threading.Event) -> Weights:
        """Copy one leaf at a time to the host: only a noisy one is on the device twice."""
        alive = self._layout.by_path(self._live.leaves)
        check_headroom(_at_work(alive.values()), on_host=size_of(alive))
        made = Weights([], self._measured, sources=self._sources())
        try:
            with raise_not_enough_memory():
                for place in _until(cancel, self._layout.places):
                    leaf = self._leaf(place) if place in self._keys else self._live.leaves[place]
                    made.host[place] = copy_to_host(leaf)
        except BaseException:
            made.drop()
            raise
        return made

    def _leaf(self, place: int) -> jax.Array:
        path = self._layout.paths[place]
        leaf = self._live.leaves[place]
        leaf = _noisy(leaf, self._keys[place], self._scale, self._rule(path, leaf))
        measured = measure({path: leaf}, self._parts)
        self._sums |= measured.sums
        self._rms |= measured.rms
        return leaf

    def _rule(self, path: str, leaf: jax.Array) -> Rule:
        """Return the rule by which the leaf is made of its tensor.

        A leaf of several tensors, or of unknown ones, counts as one tensor: it has no heads.
        """
        first, *others = self._parts.get(path) or (None,)
        return Rule(leaf.shape) if first is None or others else first.rule

    def _sources(self) -> dict[str, str]:
        paths = (self._layout.paths[place] for place in self._keys)
        noisy = {name for path in paths for name in self._live.measured.sums[path]}
        known = self._live.sources.items()
        return {name: source for name, source in known if name not in noisy}


def _at_work(leaves: Iterable[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Describe the arrays that may be on the device while the largest leaf gets its noise."""
    largest = max(leaves, key=lambda leaf: leaf.size)
    shape, sharding = largest.shape, largest.sharding
    each = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)  # type: ignore[no-untyped-call]
    return [each] * AT_WORK


def _until(cancel: threading.Event, places: Iterable[int]) -> Iterator[int]:
    for place in places:
        if cancel.is_set():
            raise Cancelled
        yield place


def _noisy(leaf: jax.Array, key: jax.Array, scale: float, rule: Rule) -> jax.Array:
    free = freely_split(leaf)
    add = _adding_noise(free.sharding if leaf.committed else None, rule)
    made = add(free, key, np.float32(scale))
    return jax.device_put(made, leaf.sharding) if leaf.committed else made


@cache
def _adding_noise(sharding: jax.sharding.Sharding | None, rule: Rule) -> Callable[..., jax.Array]:
    return jax.jit(partial(_add_noise, rule=rule), out_shardings=sharding)


def _add_noise(leaf: jax.Array, key: jax.Array, scale: jax.Array, *, rule: Rule) -> jax.Array:
    """Add noise to the leaf's tensor: each copy of a head gets the same, and zeros stay zeros."""
    tensor = rule.restore(leaf)
    noise = scale * jax.random.normal(key, tensor.shape, jnp.float32)
    noisy: jax.Array = rule.apply((tensor.astype(jnp.float32) + noise).astype(leaf.dtype))
    return noisy


def _check_changed(noise: Noise, chosen: list[str], new: Measured, live: Measured) -> None:
    """Refuse noise that overflows, or that rounding removes: the weights would not change."""
    broken = [path for path in chosen if not math.isfinite(new.rms[path])]
    same = [path for path in chosen if new.sums[path] == live.sums[path]]
    if broken:
        raise CheckpointRejected(
            f"noise of scale {noise.scale:g} makes {broken[0]} too large: take a smaller scale",
            code="nonfinite",
            findings=broken[:MOST_NAMED],
        )
    if same:
        raise CheckpointIncompatible(
            f"noise of scale {noise.scale:g} is rounded away in {same[0]}: take a larger scale",
            findings=same[:MOST_NAMED],
        )
