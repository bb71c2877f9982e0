"""Arrays in host memory: how to get at those that are there, and how to turn them quickly."""

from typing import Any

import jax
import numpy as np

from hotreload.engine.weights.rules import Array

ALIGNED = 64
"""On a CPU JAX takes memory over that begins at such an address, and copies any other."""


def fresh(size: int) -> Array:
    """Bytes of memory that JAX takes over on a CPU, and that is freed with the leaf made of it."""
    held = np.empty(size + ALIGNED, np.uint8)
    begin = -held.ctypes.data % ALIGNED
    return held[begin : begin + size]


def is_on_host(leaf: jax.Array) -> bool:
    """Whether the leaf's devices are CPUs, so that host memory is theirs."""
    return all(device.platform == "cpu" for device in leaf.devices())


def on_host(leaf: jax.Array) -> Array:
    """The whole of a leaf whose devices are CPUs; of one device it is the memory itself.

    Past `np.asarray(leaf)`, which would keep its copy for as long as the leaf lives.
    """
    shards = leaf.addressable_shards
    if len(shards) == 1 or leaf.is_fully_replicated:
        return np.asarray(shards[0].data)
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


def is_within(leaf: jax.Array, memory: Array) -> bool:
    """Whether a part of the leaf is this memory itself, as it may be where the device is a CPU."""
    if not is_on_host(leaf):
        return False
    begin, end = memory.ctypes.data, memory.ctypes.data + len(memory)
    parts = (shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards)
    return any(begin <= part < end for part in parts)


def in_order(array: Any) -> Array:
    """The same elements one after the other in memory, as a file has them.

    JAX turns several times as fast as numpy, and in one call that leaves the GIL to others.
    """
    if array.flags.c_contiguous:
        return np.asarray(array)
    return np.asarray(jax.device_put(array, jax.local_devices(backend="cpu")[0]))
