"""Whether a second set of weights fits beside the live one, in bytes and in words."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from hotreload.engine.weights.host_memory import host_bytes_free
from hotreload.errors import NotEnoughMemory


def size_of(leaves: Mapping[str, jax.Array]) -> int:
    """Bytes of a set of leaves."""
    return sum(leaf.nbytes for leaf in leaves.values())


def check_headroom(live: Mapping[str, jax.Array], beside: int = 0) -> None:
    """NotEnoughMemory unless a second set of weights, and `beside` bytes, fit on each device."""
    for device, need in _need_by_device(live).items():
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            _check_room(str(device), need + beside, stats["bytes_limit"] - stats["bytes_in_use"])
    on_host = jax.default_backend() == "cpu"
    # The loader's tensors lie in host memory and, where the device is the host, ours beside them.
    need = size_of(live) * (2 if on_host else 1) + (beside if on_host else 0)
    _check_room("host memory", need, host_bytes_free())


def _need_by_device(live: Mapping[str, jax.Array]) -> dict[Any, int]:
    need: dict[Any, int] = {}
    for leaf in live.values():
        share = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for device in leaf.sharding.addressable_devices:
            need[device] = need.get(device, 0) + share
    return need


def _check_room(where: str, need: int, free: int) -> None:
    if need > free:
        raise NotEnoughMemory(
            f"{where} has {free / 1e9:.2f} GB free, a second set of weights needs "
            f"{need / 1e9:.2f} GB: leave it more "
            "([engine.args] mem_fraction_static, max_total_tokens)"
        )


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
