"""Arrays in host memory: how to get at those that are there, and how to turn them quickly."""

import mmap
import threading
import weakref
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.leaf.leaf_rules import Array

LEAST_KEPT = 1 << 20
"""Smaller pieces are left to Python's own memory."""
ALIGNED = 64
"""On a CPU JAX takes memory over that begins at such an address, and copies any other."""
TURNED = (256, 1024)
"""Rows and columns that are turned at a time: they stay in a core's cache. JAX turns them in the
C library's memory, where something small that stays may make such a hole useless for the next."""


class LeafMemory:
    """Memory that leaves are made in: what a freed leaf leaves is used again.

    On a CPU a leaf is that memory itself, and to touch new memory takes longer than to fill it.
    Memory is spare once nobody holds the array that was handed out, or a part of it: JAX holds it
    until the last leaf is gone that lies there, and the last program has ended that reads it. The
    system takes spare memory back when anybody wants some: it counts as free.
    """

    def __init__(self) -> None:
        self.held = 0
        """Bytes that leaves lie in."""
        self.spare = 0
        """Bytes that freed leaves left: with those that leaves lie in never more than these had."""
        self._most = 0
        """The most bytes that leaves lay in at once."""
        self._spare: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
        # Python may look for garbage while it is held, and free what was handed out.
        self._lock = threading.RLock()

    def take(self, size: int) -> Array:
        """Bytes of memory that is the caller's until no array lies there any more."""
        if size < LEAST_KEPT:
            held = np.empty(size + ALIGNED, np.uint8)
            begin = -held.ctypes.data % ALIGNED
            return held[begin : begin + size]
        with self._lock:
            block = self._spare[size].pop() if self._spare.get(size) else None
            self.spare -= size if block else 0
            self.held += size
            self._most = max(self._most, self.held)
            while self.spare + self.held > self._most:
                self._let_go()
        block = block or mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(block, np.uint8)
        weakref.finalize(memory, self._take_back, block).atexit = False
        return memory

    def _take_back(self, block: mmap.mmap) -> None:
        with self._lock:
            self.held -= len(block)
            if _is_lent_to_the_system(block):
                self.spare += len(block)
                self._spare[len(block)].append(block)

    def _let_go(self) -> None:
        size, blocks = next((size, blocks) for size, blocks in self._spare.items() if blocks)
        blocks.pop()
        self.spare -= size


def _is_lent_to_the_system(block: mmap.mmap) -> bool:
    """Let the system take its pages when it wants some; False where it knows no such loan."""
    try:
        block.madvise(mmap.MADV_FREE)
    except OSError:
        return False
    return True


fresh = LeafMemory().take
"""Memory for leaves of this process."""


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


def in_order(array: Any) -> Array:
    """The same elements one after the other in memory, as a file has them."""
    if array.flags.c_contiguous:
        return np.asarray(array)
    made: Array = fresh(array.nbytes).view(array.dtype).reshape(array.shape)
    lay(array, made)
    return made


def lay(array: Array, memory: Array) -> None:
    """Put the elements of an array into memory of its shape, one after the other.

    JAX turns several times as fast as numpy, in calls that leave the GIL to others, but into new
    memory: it turns a piece of what is to be copied from there.
    """
    if array.flags.c_contiguous:
        memory[...] = array
        return
    cpu = jax.local_devices(backend="cpu")[0]
    by_stride = sorted(range(array.ndim), key=array.strides.__getitem__)
    across, along = by_stride[0], by_stride[-1]
    for at in range(0, array.shape[along], TURNED[0]):
        for beside in range(0, array.shape[across], TURNED[1]):
            place = [slice(None)] * array.ndim
            place[along] = slice(at, at + TURNED[0])
            place[across] = slice(beside, beside + TURNED[1])
            piece = tuple(place)
            memory[piece] = np.asarray(jax.device_put(array[piece], cpu))
