"""Counts the memory that leaves take while they are made, on their devices and on the host."""

from collections.abc import Sequence

from hotreload.engine.weights.leaf.on_device import WIDEST, there_twice
from hotreload.engine.weights.load.own import DTYPES
from hotreload.engine.weights.memory.headroom import Described
from hotreload.engine.weights.memory.page_locked import memory_for_rings
from hotreload.types import Checkpoint


def room_for_leaves(
    leaves: Sequence[Described], checkpoint: Checkpoint, threads: int
) -> tuple[list[Described], int]:
    """Describe what lies on devices while these leaves are made of a checkpoint, them included.

    The second result is the number of bytes that the host needs for it.
    """
    stored = () if checkpoint.memory is not None else checkpoint.tensors.values()
    itemsizes = {DTYPES[each.dtype].itemsize for each in stored if each.dtype in DTYPES}
    making, on_host = room_to_make(leaves, itemsizes, threads)
    return [*leaves, *making], on_host + room_to_read(checkpoint, threads)


def room_to_make(
    leaves: Sequence[Described], itemsizes: set[int], threads: int
) -> tuple[list[Described], int]:
    """Describe what lies on devices beside leaves while they are made.

    `itemsizes` are those of the tensors in files. The second result is the number of bytes that the
    host needs for it.
    """
    short = [size for size in itemsizes if size <= WIDEST]
    rings, on_host = memory_for_rings(leaves, short, threads)
    return [*there_twice(leaves, threads), *rings], on_host


def room_to_read(checkpoint: Checkpoint, threads: int) -> int:
    """Count the bytes of host memory that tensors are read into, beside the leaves themselves."""
    if checkpoint.is_unread:
        return 0
    sizes = (held.end - held.begin for held in checkpoint.held.values())
    return max(sizes, default=0) * threads
