"""The fingerprint of weights: sixteen hex digits that a file, a daemon and a hub's commit share.

Here a file's is computed, with numpy alone. The engine computes the same sums of what is live,
on its devices, from the constants below.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

MIX_BITS = 0x9E3779B1
"""By what the high sum multiplies an element's bits, before it adds the index."""
MIX_INDEX = 0x85EBCA77
"""By what the low sum multiplies an element's index, before it xors the bits."""
MIX_STEPS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
MIX_LAST = 16
"""MurmurHash3's finaliser: `x ^= x >> shift` and `x *= factor` for each step, then a last shift.
Every bit of what goes in moves every bit of what comes out."""

BLOCK = 2**17
"""Elements that are mixed at a time: many a call, and few enough to stay in a core's cache."""

_UNSIGNED: Mapping[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_Words = np.ndarray[Any, np.dtype[np.uint32]]


def fingerprint(sums: Mapping[str, int]) -> str:
    """The fingerprint of a set of tensors, of each one's sum by its name."""
    lines = (f"{name}:{value:016x}\n" for name, value in sorted(sums.items()))
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())


class TensorSum:
    """Sums up one tensor after the other, in the order in which a file holds their elements.

    Two sums mod 2**32 over a mix of each element's bits and its index. A sum has no order, so
    devices may add up a part each; the index in the mix makes swapped elements show.
    """

    def __init__(self) -> None:
        self._mixed = np.empty((2, BLOCK), np.uint32)
        self._shifted = np.empty_like(self._mixed)
        self._index = np.arange(BLOCK, dtype=np.uint32)
        self._spread = self._index * np.uint32(MIX_INDEX)
        self.reset()

    def reset(self) -> None:
        """Begin with another tensor."""
        self._reached = 0
        self._sums = np.zeros(2, np.uint32)

    def update(self, raw: memoryview | bytes, width: int) -> None:
        """Take in the bytes that follow, whole elements of 1, 2 or 4 bytes."""
        bits = np.frombuffer(raw, _UNSIGNED[width])
        for begin in range(0, len(bits), BLOCK):
            self._add(bits[begin : begin + BLOCK])

    @property
    def value(self) -> int:
        """Sixty-four bits for all that was taken in."""
        high, low = self._sums.tolist()
        return int(high << 32 | low)

    def _add(self, bits: np.ndarray[Any, Any]) -> None:
        count, reached = len(bits), self._reached
        high, low = mixed = self._mixed[:, :count]
        np.multiply(bits, np.uint32(MIX_BITS), out=high, dtype=np.uint32)
        high += self._index[:count]
        high += np.uint32(reached % 2**32)
        np.add(self._spread[:count], np.uint32(reached * MIX_INDEX % 2**32), out=low)
        low ^= bits
        _mix(mixed, self._shifted[:, :count])
        self._sums += np.add.reduce(mixed, axis=1, dtype=np.uint32)
        self._reached += count


def _mix(x: _Words, shifted: _Words) -> None:
    """Mix in place: without a new array a step, it stays in the cache."""
    for shift, factor in MIX_STEPS:
        np.right_shift(x, np.uint32(shift), out=shifted)
        x ^= shifted
        x *= np.uint32(factor)
    np.right_shift(x, np.uint32(MIX_LAST), out=shifted)
    x ^= shifted
