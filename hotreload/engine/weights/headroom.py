"""Says, in bytes and in words, if more weights fit where they are to lie."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from hotreload.engine.weights.host_memory import host_bytes_free
from hotreload.errors import NotEnoughMemory

Described = Any
"""An array, or what says of one that is to be made its shape, dtype and sharding."""


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

    def __str__(self) -> str:
        return (
            f"{self.where} has {_gb(self.free)} free, a second set of weights needs "
            f"{_gb(self.need)}: {self.need - self.free} bytes are missing"
        )


def check_headroom(
    new: Iterable[Described], *, beside: Iterable[Described] = (), on_host: int = 0
) -> None:
    """NotEnoughMemory unless `new` leaves fit on their devices beside all that is there.

    `beside` are arrays that will be made later and must fit then: the KV pool weights are proven
    in. `on_host` is how many bytes of host memory are needed to make them; where the device is the
    host, the leaves take theirs on top.
    """
    for lack in find_lacks([*new, *beside], on_host):
        todo = (
            "see who takes it, and that no limit of the unit is too low"
            if lack.is_host
            else "leave it more ([engine.args] mem_fraction_static, max_total_tokens), "
            "or set [reload] memory = 'host'"
        )
        raise NotEnoughMemory(f"{lack}; {todo}")


def find_lacks(arrays: Iterable[Described], on_host: int) -> Iterator[Lack]:
    """Each device, and last the host, that has no room for its share of these arrays."""
    on_cpu = 0
    for device, need in shares_of(arrays).items():
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats["bytes_in_use"]
            yield from _lack(str(device), need, free, is_host=False)
        on_cpu += need if device.platform == "cpu" else 0
    yield from _lack("host memory", on_host + on_cpu, host_bytes_free(), is_host=True)


def _lack(where: str, need: int, free: int, *, is_host: bool) -> Iterator[Lack]:
    if need > free:
        yield Lack(where, need, free, is_host)


def shares_of(arrays: Iterable[Described]) -> Mapping[Any, int]:
    """Bytes of these arrays on each device of this host."""
    shares: Counter[Any] = Counter()
    for each in arrays:
        share = math.prod(each.sharding.shard_shape(each.shape)) * each.dtype.itemsize
        for device in each.sharding.addressable_devices:
            shares[device] += share
    return shares


def why_one_set(memory: str, live: Iterable[Described], beside: Iterable[Described]) -> str | None:
    """Say why one set of weights at a time is on the device; None where two are.

    `auto` looks once, at the start, when everything else is there that the engine will need.
    """
    if memory == "double":
        return None
    if memory == "host":
        return "[reload] memory = 'host': one set of weights at a time is on the device"
    arrays = [*live, *beside]
    on_cpu = all(device.platform == "cpu" for device in shares_of(arrays))
    # A host without room is no reason to have weights wait there.
    lacks = (lack for lack in find_lacks(arrays, 0) if on_cpu or not lack.is_host)
    return next((f"[reload] memory = 'auto': {lack}" for lack in lacks), None)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


@contextmanager
def telling_lack_of_memory() -> Iterator[None]:
    """Turn the error of a failed allocation, on the host or a device, into NotEnoughMemory."""
    short = None
    try:
        yield
    except MemoryError as fault:
        short = str(fault) or "host memory is exhausted"
    except jax.errors.JaxRuntimeError as fault:
        if "RESOURCE_EXHAUSTED" not in str(fault):
            raise
        short = str(fault)
    # Raised out here: inside, its context would keep the frames, and the frames the memory.
    if short is not None:
        raise NotEnoughMemory(f"no room for a second set of weights: {short}")
