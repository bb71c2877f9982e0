"""Arrays in host memory: access to those that are there, and a quick way to transpose them."""

import mmap
import threading
import weakref
from collections import defaultdict
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import pxla

from hotreload.engine.weights.leaf.leaf_rules import Array

LEAST_KEPT = 1 << 20
"""Smaller pieces are left to Python's own memory."""
ALIGNED = 64
"""On a CPU JAX takes memory over that begins at such an address, and copies any other."""
TURNED = (1024, 256)
"""Rows and columns that are turned at a time: they stay in a core's cache, and go to their place in
long runs. JAX turns them in the C library's memory, where something small that stays may make such
a hole useless for the next: with twice the columns it often takes 32 MiB more of memory."""


class LeafMemory:
    """The memory that leaves are made in; the memory of a freed leaf is used again.

    On a CPU a leaf is that memory itself, and to touch new memory takes longer than to fill it.
    Memory is spare once no reference is left to the array that was handed out, or to a part of it.
    JAX keeps one until the last leaf there is gone, and the last program that reads it has ended.
    The system may take spare memory for other processes: it counts as free.
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
        """Return memory of `size` bytes; it is the caller's until no array lies there any more."""
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
        block = block or _new_block(size)
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


def _new_block(size: int) -> mmap.mmap:
    """Return new memory, of large pages if the system has them.

    A turned leaf is written to at a thousand places in turn: of usual pages no processor knows so
    many at once.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _is_lent_to_the_system(block: mmap.mmap) -> bool:
    """Let the system take the block's pages when it needs some; False if it cannot do that."""
    try:
        block.madvise(mmap.MADV_FREE)
    except OSError:
        return False
    return True


fresh = LeafMemory().take
"""Memory for leaves of this process."""


def is_on_host(leaf: jax.Array | Array) -> bool:
    """Say if the leaf lies in host memory, also if a CPU is its device."""
    return isinstance(leaf, np.ndarray) or all(
        device.platform == "cpu" for device in leaf.devices()
    )


def on_host(leaf: jax.Array | Array) -> Array:
    """Return the whole of a leaf in host memory; on one device that is the leaf's own memory.

    On several devices a copy is read: a leaf keeps the array that it was asked for as long as the
    leaf lives. Parts that other hosts hold, or hold first, are zeros.
    """
    if isinstance(leaf, np.ndarray):
        return leaf
    if not leaf.is_fully_addressable:
        return _own_part(leaf)
    return np.asarray(leaf if len(leaf.devices()) == 1 else _copy(leaf))


def copy_to_host(leaf: jax.Array | Array) -> Array:
    """Copy the leaf into host memory of our own; the leaf itself keeps no second array."""
    return np.array(on_host(leaf) if is_on_host(leaf) else _copy(leaf))


def _own_part(leaf: jax.Array) -> Array:
    held = np.zeros(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            held[shard.index] = np.asarray(shard.data)
    return held


_copy = jax.jit(jnp.copy)


def in_order(array: Any) -> Array:
    """Return the same elements one after the other in memory, as a file has them."""
    if array.flags.c_contiguous:
        return np.asarray(array)
    made: Array = fresh(array.nbytes).view(array.dtype).reshape(array.shape)
    lay(array, made)
    return made


def place_array(array: Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """Place an array of this host, in half the time that `device_put` takes for its checks.

    That would also compare the whole array with that of every other host, and wait.
    """

    def read(at: Any) -> Array:
        return array[(*at, ...)]  # an array, also where it has no dimension

    return jax.make_array_from_callback(array.shape, sharding, read)


def lay(array: Array, memory: Array) -> None:
    """Put the elements of an array into memory of its shape, one after the other.

    JAX transposes several times as fast as numpy, and releases the GIL meanwhile, but it writes to
    new memory. Therefore it transposes one piece at a time, which is then copied from there. They
    are pieces of unsigned numbers: numpy has no quick way to an array of JAX of bfloat16.
    """
    bits = f"u{array.itemsize}"
    array, memory = array.view(bits), memory.view(bits)
    if array.flags.c_contiguous:
        memory[...] = array
        return
    by_stride = sorted(range(array.ndim), key=array.strides.__getitem__)
    across, along = by_stride[0], by_stride[-1]
    for at in range(0, array.shape[along], TURNED[0]):
        for beside in range(0, array.shape[across], TURNED[1]):
            place = [slice(None)] * array.ndim
            place[along] = slice(at, at + TURNED[0])
            place[across] = slice(beside, beside + TURNED[1])
            piece = tuple(place)
            memory[piece] = _transpose(array[piece])


def _transpose(piece: Array) -> Array:
    """Have JAX lay a piece down. JAX's public calls keep Python's lock three times as long.

    What describes a piece is made once: of thousands each would keep the lock from other threads.
    """
    described, cpu = _describe(piece.shape, piece.dtype), _cpu()
    return np.asarray(pxla.batched_device_put(described, cpu, [piece], [*cpu.device_set]))


@lru_cache(256)
def _describe(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.core.ShapedArray(shape, dtype)


@cache
def _cpu() -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
