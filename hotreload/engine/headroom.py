"""Whether a second set of weights fits beside the live one, in bytes and in words."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from hotreload.errors import NotEnoughMemory


def size_of(leaves: Mapping[str, jax.Array]) -> int:
    """Bytes of a set of leaves."""
    return sum(leaf.nbytes for leaf in leaves.values())


def check_headroom(live: Mapping[str, jax.Array]) -> None:
    """NotEnoughMemory unless a second set of weights fits beside the live one."""
    for device, need in _need_by_device(live).items():
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            _check_room(str(device), need, stats["bytes_limit"] - stats["bytes_in_use"])
    on_host = jax.default_backend() == "cpu"
    # The loader's tensors and, where the device is the host, ours beside them.
    _check_room("host memory", size_of(live) * (2 if on_host else 1), host_bytes_free())


def _need_by_device(live: Mapping[str, jax.Array]) -> dict[Any, int]:
    need: dict[Any, int] = {}
    for leaf in live.values():
        share = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for device in leaf.sharding.addressable_devices:
            need[device] = need.get(device, 0) + share
    return need


def host_bytes_free() -> int:
    """What this process may still take: of the machine, and of each group it is limited in.

    A unit's MemoryMax= and a container's limit do not show in /proc/meminfo; who goes over
    them is killed.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_free_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _free_in_groups(membership: Path, tree: Path) -> Iterator[int]:
    """What is free below each limit on the way from our control group (version 2) to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for name in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        group = tree / name
        for each in (group, *group.parents):
            if each.is_relative_to(tree):
                yield from _free_in(each)


def _free_in(group: Path) -> Iterator[int]:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        kept = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # the root has none, and neither has version 1
        return
    if limit != "max":
        cached = sum(int(size) for name, size in kept if name == "inactive_file")
        yield int(limit) - used + cached


def _check_room(where: str, need: int, free: int) -> None:
    if need > free:
        raise NotEnoughMemory(
            f"{where} has {free / 1e9:.2f} GB free, a second set of weights needs "
            f"{need / 1e9:.2f} GB: leave it more "
            "([engine.args] mem_fraction_static, max_total_tokens)"
        )


@contextmanager
def telling_lack_of_memory() -> Iterator[None]:
    """Turn what an allocation fails with, on the host or the device, into NotEnoughMemory."""
    short = None
    try:
        yield
    except MemoryError as fault:
        short = str(fault) or "host memory is exhausted"
    except jax.errors.JaxRuntimeError as fault:
        if "RESOURCE_EXHAUSTED" not in str(fault):
            raise
        short = str(fault)
    # Raised out here, or its context would keep the frames, and they the memory.
    if short is not None:
        raise NotEnoughMemory(f"no room for a second set of weights: {short}")
