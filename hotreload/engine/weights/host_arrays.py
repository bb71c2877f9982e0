"""Arrays in host memory: how to get at those that are there, and how to turn them quickly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.leaf_rules import Array

ALIGNED = 64
"""On a CPU JAX takes memory over that begins at such an address, and copies any other."""


def fresh(size: int) -> Array:
    """Bytes of memory that JAX takes over on a CPU, and that is freed with the leaf made of it."""
    held = np.empty(size + ALIGNED, np.uint8)
    begin = -held.ctypes.data % ALIGNED
    return held[begin : begin + size]


def is_on_host(leaf: jax.Array | Array) -> bool:
    """Say if it lies in host memory, be it a CPU's as a device."""
    return isinstance(leaf, np.ndarray) or all(
        device.platform == "cpu" for device in leaf.devices()
    )


def on_host(leaf: jax.Array | Array) -> Array:
    """The whole of a leaf that lies in host memory; of one device it is the memory itself.

    Of several it is a copy's: a leaf keeps what it was asked for, for as long as it lives, and one
    that is asked for its shards counts as two arrays. Where other hosts hold a part, or hold it
    first, there are zeros.
    """
    if isinstance(leaf, np.ndarray):
        return leaf
    if not leaf.is_fully_addressable:
        return _own_part(leaf)
    return np.asarray(leaf if len(leaf.devices()) == 1 else _copy(leaf))


def copied_to_host(leaf: jax.Array | Array) -> Array:
    """The leaf in host memory of our own; the leaf itself does not keep what it was asked for."""
    return np.array(on_host(leaf) if is_on_host(leaf) else _copy(leaf))


def _own_part(leaf: jax.Array) -> Array:
    held = np.zeros(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            held[shard.index] = np.asarray(shard.data)
    return held


_copy = jax.jit(jnp.copy)


def is_within(leaf: jax.Array, memory: Array) -> bool:
    """Say if a leaf of one device is this memory itself, as it may be where that is a CPU."""
    if not is_on_host(leaf):
        return False
    begin = memory.ctypes.data
    return bool(begin <= leaf.unsafe_buffer_pointer() < begin + len(memory))


def in_order(array: Any) -> Array:
    """The same elements one after the other in memory, as a file has them.

    JAX turns several times as fast as numpy, and in one call that leaves the GIL to others.
    """
    if array.flags.c_contiguous:
        return np.asarray(array)
    return np.asarray(jax.device_put(array, jax.local_devices(backend="cpu")[0]))
