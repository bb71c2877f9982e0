"""Checks, in bytes, if more weights fit on the devices or on the host; names the missing bytes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from hotreload.engine.weights.memory.host_memory import host_bytes, host_bytes_free
from hotreload.errors import NotEnoughMemory

Described = Any
"""An array, or the description of one that is to be made: shape, dtype and sharding."""

KEPT_FREE = 16
"""The share of a device, or of the host, that a third set and later ones leave free (1 in 16):
answering takes memory for moments that no check between two steps sees."""


def size_of(leaves: Mapping[str, jax.Array]) -> int:
    """Bytes of a set of leaves."""
    return sum(leaf.nbytes for leaf in leaves.values())


@dataclass(frozen=True, slots=True)
class Lack:
    """A place without room."""

    where: str
    need: int
    free: int
    is_host: bool
    is_further: bool = False
    """True where two sets are there already, and some memory is to stay free."""

    def __str__(self) -> str:
        has = f"{_gb(max(self.free, 0))} {'to spare' if self.is_further else 'free'}"
        wanted = "one more" if self.is_further else "a second"
        return (
            f"{self.where} has {has}, {wanted} set of weights needs {_gb(self.need)}: "
            f"{self.need - self.free} bytes are missing"
        )


def check_headroom(
    new: Iterable[Described], *, beside: Iterable[Described] = (), on_host: int = 0
) -> None:
    """Raise NotEnoughMemory unless `new` leaves fit on their devices beside all that is there.

    `beside` are arrays that will be made later and must fit then: the KV pool for proving weights.
    `on_host` is the number of bytes of host memory for making the leaves; if the device is the
    host, the leaves' own memory comes on top.
    """
    for lack in find_lacks([*new, *beside], on_host):
        todo = (
            "see who takes it, and that no limit of the unit is too low"
            if lack.is_host
            else "leave it more ([engine.args] mem_fraction_static, max_total_tokens), "
            "or set [reload] memory = 'host'"
        )
        raise NotEnoughMemory(f"{lack}; {todo}")


def find_lacks(
    arrays: Iterable[Described], on_host: int, *, is_further: bool = False
) -> Iterator[Lack]:
    """Yield each device, and last the host, that has no room for its share of these arrays.

    With `is_further`, for a third set or a later one, one part in `KEPT_FREE` must stay free.
    """
    on_cpu, kept = 0, int(is_further)
    for device, need in shares_of(arrays).items():
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats["bytes_in_use"]
            free -= kept * stats["bytes_limit"] // KEPT_FREE
            if need > free:
                yield Lack(str(device), need, free, is_host=False, is_further=is_further)
        on_cpu += need if device.platform == "cpu" else 0
    need, free = on_host + on_cpu, host_bytes_free() - kept * host_bytes() // KEPT_FREE
    if need > free:
        yield Lack("host memory", need, free, is_host=True, is_further=is_further)


def shares_of(arrays: Iterable[Described]) -> Mapping[Any, int]:
    """Return the bytes of these arrays on each device of this host."""
    shares: Counter[Any] = Counter()
    for each in arrays:
        share = math.prod(each.sharding.shard_shape(each.shape)) * each.dtype.itemsize
        for device in each.sharding.addressable_devices:
            shares[device] += share
    return shares


def why_one_set(memory: str, live: Iterable[Described], beside: Iterable[Described]) -> str | None:
    """Say why one set of weights at a time is on the device; None if two fit there.

    `auto` is decided once, at the start, when all else that the engine needs is in memory.
    """
    if memory == "double":
        return None
    if memory == "host":
        return "[reload] memory = 'host': one set of weights at a time is on the device"
    # A host without room is no reason to have weights wait there.
    lack = _lack_of_device([*live, *beside], 0)
    return None if lack is None else f"[reload] memory = 'auto': {lack}"


def why_no_further(new: Iterable[Described], on_host: int) -> str | None:
    """Say why a set of `new` leaves has no room beside two or more sets; None if it has.

    Host memory that only the making of the set needs is checked when it is staged: freeing an
    older set does not provide it.
    """
    lack = _lack_of_device([*new], on_host, is_further=True)
    return None if lack is None else str(lack)


def _lack_of_device(
    arrays: Sequence[Described], on_host: int, *, is_further: bool = False
) -> Lack | None:
    on_cpu = all(device.platform == "cpu" for device in shares_of(arrays))
    lacks = find_lacks(arrays, on_host, is_further=is_further)
    return next((lack for lack in lacks if on_cpu or not lack.is_host), None)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


@contextmanager
def raise_not_enough_memory(what: str = "a second set of weights") -> Iterator[None]:
    """Raise NotEnoughMemory in place of the error of a failed allocation, on host or device.

    The same for XLA's error when no file descriptor is left to open a source of random numbers.
    """
    short = None
    try:
        yield
    except MemoryError as fault:
        short = str(fault) or "host memory is exhausted"
    except RuntimeError as fault:  # those of JAX are such
        if "random_device" in str(fault):
            short = "no file descriptor is left"
        elif "RESOURCE_EXHAUSTED" in str(fault):
            short = str(fault)
        else:
            raise
    # Raised out here: inside, its context would keep the frames, and the frames the memory.
    if short is not None:
        raise NotEnoughMemory(f"no room for {what}: {short}")
