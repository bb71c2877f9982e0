"""Copies the live weights and puts noise on some leaves, to see whether checksums move.

Equal noise on equal weights gives equal weights, whatever the sharding.
"""

import math
import random
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.headroom import check_headroom, telling_lack_of_memory
from hotreload.engine.weights.leaves import Layout, Measured, copied, measure
from hotreload.engine.weights.staging import (
    NAMED,
    Weights,
    check_signatures,
    wait_for,
)
from hotreload.errors import CheckpointIncompatible, CheckpointRejected
from hotreload.reading import Cancelled
from hotreload.types import Noise


def perturb(noise: Noise, *, layout: Layout, live: Weights, cancel: threading.Event) -> Weights:
    """Copy the live weights and add noise to some; the copy shares no leaf with them.

    Sharing the other leaves would take less memory, but then our figures of what a set weighs
    would be false, and freeing a set would not free its memory.
    """
    check_headroom(layout.named(live.leaves))
    keys = _keys_by_place(noise, layout, live.leaves)
    leaves = list(live.leaves)
    try:
        with telling_lack_of_memory():
            _copy_with_noise(leaves, noise.scale, keys, layout, cancel)
            measured = measure(layout.named(leaves))
        check_signatures(layout, leaves, live.leaves)
        _check_changed(noise, [layout.paths[place] for place in keys], measured, live.measured)
    except BaseException:
        leaves.clear()  # an error keeps the frames it passed, and they must not keep weights
        raise
    return Weights(leaves, measured)


def _keys_by_place(noise: Noise, layout: Layout, live: list[Any]) -> dict[int, jax.Array]:
    """Which places get noise, and from which key.

    They are chosen by path: another engine may list the same weights in another order.
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


def _copy_with_noise(
    leaves: list[Any],
    scale: float,
    keys: Mapping[int, jax.Array],
    layout: Layout,
    cancel: threading.Event,
) -> None:
    for place in layout.places:
        if cancel.is_set():
            raise Cancelled
        leaf, key = leaves[place], keys.get(place)
        leaves[place] = copied(leaf) if key is None else _noisy(leaf, key, scale)
    wait_for(layout, leaves)


def _noisy(leaf: jax.Array, key: jax.Array, scale: float) -> jax.Array:
    add = _adding_noise(leaf.sharding if leaf.committed else None)
    return add(leaf, key, np.float32(scale))


@cache
def _adding_noise(sharding: jax.sharding.Sharding | None) -> Callable[..., jax.Array]:
    return jax.jit(_add_noise, out_shardings=sharding)


def _add_noise(leaf: jax.Array, key: jax.Array, scale: jax.Array) -> jax.Array:
    noise = scale * jax.random.normal(key, leaf.shape, jnp.float32)
    return (leaf.astype(jnp.float32) + noise).astype(leaf.dtype)


def _check_changed(noise: Noise, chosen: list[str], new: Measured, live: Measured) -> None:
    """Refuse noise that overflows, or is rounded away: that would look like no swap at all."""
    broken = [path for path in chosen if not math.isfinite(new.rms[path])]
    same = [path for path in chosen if new.sums[path] == live.sums[path]]
    if broken:
        raise CheckpointRejected(
            f"noise of scale {noise.scale:g} makes {broken[0]} too large: take a smaller scale",
            code="nonfinite",
            findings=broken[:NAMED],
        )
    if same:
        raise CheckpointIncompatible(
            f"noise of scale {noise.scale:g} is rounded away in {same[0]}: take a larger scale",
            findings=same[:NAMED],
        )
