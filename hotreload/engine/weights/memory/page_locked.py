"""Page-locked host memory: a device takes bytes from there while the next ones are read.

JAX has such memory as arrays of the kind `pinned_host`, and copies any other memory there first.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.leaf.leaf_rules import Array
from hotreload.engine.weights.memory.host_arrays import is_on_host

log = logging.getLogger("hotreload.engine")

KIND = "pinned_host"
BUFFERS = 4
"""One is read into while others are on their way."""
SENT_AT_ONCE = 8 << 20
"""Bytes of each. The last one of a tensor is sent whole, however little it holds."""


class Buffer:
    """Page-locked memory that is sent to a device again and again."""

    def __init__(self, size: int, dtype: Any, device: Any) -> None:
        self._there = jax.sharding.SingleDeviceSharding(
            device, memory_kind=device.default_memory().kind
        )
        # JAX may take this memory over, so no two buffers may be made of one array.
        zeros = np.zeros(size // dtype.itemsize, dtype)
        locked = jax.device_put(zeros, self._there.with_memory_kind(KIND))
        self._locked: jax.Array = locked.block_until_ready()
        self.memory: Array = np.asarray(_Writable(self._locked))
        self._under_way: jax.Array | None = None

    def send(self) -> jax.Array:
        """Begin to copy it to the device; it must not be written to before `wait` returns."""
        self._under_way = jax.device_put(self._locked, self._there)
        return self._under_way

    def wait(self) -> None:
        """Wait until the device has what was sent last."""
        if self._under_way is not None:
            self._under_way.block_until_ready()
            self._under_way = None


class _Writable:
    """The memory of an array of JAX, to numpy, which keeps it for as long as it looks there."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array
        place = (array.unsafe_buffer_pointer(), False)
        self.__array_interface__ = {
            "data": place,
            "shape": (array.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class LockedBuffers:
    """A ring of buffers that brings tensors to one device; belongs to one thread.

    Elements travel as unsigned numbers of their size: XLA may compute with others to move them.
    """

    def __init__(self, device: Any, itemsize: int) -> None:
        dtype = np.dtype(f"u{itemsize}")
        self._size = SENT_AT_ONCE
        self._buffers = [Buffer(SENT_AT_ONCE, dtype, device) for _ in range(BUFFERS)]
        self._next = 0
        self._arrived: jax.Array | None = None

    def memory_for(self, size: int) -> Iterator[Array]:
        """Yield memory for the next bytes of a tensor; each is sent when the next is asked for."""
        rows, begins = None, range(0, size or 1, self._size)
        for at, begin in enumerate(begins):
            buffer = self._buffers[self._next]
            self._next = (self._next + 1) % len(self._buffers)
            buffer.wait()
            yield buffer.memory[: size - begin]
            row = buffer.send()
            rows = _begin(row, len(begins)) if rows is None else _put_in(rows, row, np.int32(at))
        self._arrived = rows

    def take(self) -> jax.Array:
        """Return the tensor whose bytes were written last: rows in its order, the last filled up.

        Its elements are unsigned numbers, and may not have arrived yet.
        """
        assert self._arrived is not None, "all its memory was asked for"
        arrived, self._arrived = self._arrived, None
        return arrived

    def check(self) -> None:
        """Raise ValueError or OSError unless bytes that are written to the buffers arrive.

        A device may keep an array in another order, or where this process cannot write. The system
        writes here: where it cannot it says so, and the process does not end.
        """
        pattern = np.arange(self._size // 4, dtype=np.uint32).view(np.uint8)
        file = os.memfd_create("pattern")
        try:
            os.write(file, pattern)
            for buffer in self._buffers:
                os.preadv(file, [buffer.memory], 0)
                if not np.array_equal(np.asarray(buffer.send()).view(np.uint8), pattern):
                    raise ValueError("bytes that are written there arrive as others")
                buffer.wait()
        finally:
            os.close(file)

    def close(self) -> None:
        """Give the buffers back; JAX keeps each until nothing is copied from it any more."""
        self._arrived, self._buffers = None, []


def memory_for_rings(
    leaves: Iterable[Any], itemsizes: Collection[int], readers: int
) -> tuple[list[Any], int]:
    """Describe what rings for these leaves take on their devices, and count the host's bytes.

    Each reader has a ring for each device and each size of the tensors' elements.
    """
    devices = {_one_device(leaf) for leaf in leaves if not is_on_host(leaf)} - {None}
    rings = len(itemsizes) * readers
    # A tensor's last buffer is sent whole: there the tensor is longer by up to one.
    shape = (rings * (BUFFERS + 1) * SENT_AT_ONCE,)
    places = map(jax.sharding.SingleDeviceSharding, devices)
    there = [
        jax.ShapeDtypeStruct(shape, np.uint8, sharding=each)  # type: ignore[no-untyped-call]
        for each in places
        if rings
    ]
    return there, len(devices) * rings * BUFFERS * SENT_AT_ONCE


def ring_for(live: Any, itemsize: int) -> LockedBuffers | None:
    """Make a ring for leaves on this one's device; None where there can be none, which is logged.

    `itemsize` is that of the tensors.
    """
    device = _one_device(live)
    if device is None:
        return _without("a leaf lies on several devices, or on whichever JAX takes")
    try:
        ring = LockedBuffers(device, itemsize)
        ring.check()
    except Exception as fault:  # whatever it is, other memory does it, too
        return _without(f"{type(fault).__name__}: {fault}")
    return ring


def _one_device(live: Any) -> Any | None:
    devices = list(live.devices())
    return devices[0] if live.committed and len(devices) == 1 else None


@cache
def _without(why: str) -> None:
    """Log once that tensors go to the device from usual memory."""
    log.info("staging.not_page_locked", extra={"why": why})


@partial(jax.jit, static_argnums=1)
def _begin(row: jax.Array, count: int) -> jax.Array:
    return jnp.zeros((count, row.size), row.dtype).at[0].set(row)


@partial(jax.jit, donate_argnums=0)
def _put_in(rows: jax.Array, row: jax.Array, at: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(rows, row, at, 0)
