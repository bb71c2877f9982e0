"""The fingerprint of weights: sixteen hex digits that a file, a daemon and a hub's commit share.

A tensor's bytes, in the file's order, are words of four, little end first; zeros fill up the last.
Each word is folded and multiplied by the number of its place in a block, once for each of two
lanes; the sum over a block, times the block's number, is summed up mod 2**32. A sum has no order,
so devices may add up a part each; the numbers of the places make swapped elements show.

This module computes it for a file, with numpy alone; the engine computes the same for the live
weights, on its devices, with the functions below.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
import xxhash

BLOCK = 2**16
"""Words in a block: few enough that the numbers of its places stay in a core's cache."""
LANES = 2
BLOCKS_AT_ONCE = 4
"""Blocks that are added up by one call: each call waits for the GIL when it returns."""

_Words = np.ndarray[Any, np.dtype[np.uint32]]


def fingerprint(sums: Mapping[str, int]) -> str:
    """Make the fingerprint of a set of tensors from each one's sum by its name."""
    lines = (f"{name}:{value:016x}\n" for name, value in sorted(sums.items()))
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())


def join_lanes(lanes: Any) -> int:
    """Join the sums of both lanes into one of 64 bits."""
    high, low = (int(lane) % 2**32 for lane in lanes)
    return high << 32 | low


def lanes_of(value: int) -> tuple[int, ...]:
    """Split a sum of 64 bits into those of both lanes."""
    return value >> 32, value % 2**32


def fold_words(words: Any) -> Any:
    """Words of numpy or JAX whose high bits are in the low ones too: a product loses high bits."""
    return words ^ (words >> np.uint32(16))


def number_of_place(place: Any, lane: int) -> Any:
    """Return the number of a place in a block, in one of the lanes."""
    return _mix(place + np.uint32(lane * BLOCK + 1)) | np.uint32(1)


def number_of_block(block: Any) -> Any:
    """Return the number of a block."""
    return number_of_place(block, LANES)


def _mix(x: Any) -> Any:
    """Mix as MurmurHash3's finaliser: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


@cache
def _numbers(lane: int) -> _Words:
    numbers: _Words = number_of_place(np.arange(BLOCK, dtype=np.uint32), lane)
    return numbers


@lru_cache(BLOCK)
def _of_block(block: int) -> np.uint32:
    """Return a block's number, cached: each tensor begins with the same blocks, up to 16 GB."""
    number: np.uint32 = number_of_block(np.array([block], np.uint32))[0]
    return number


class TensorSum:
    """Sums up one tensor after the other, in the order in which a file holds their elements.

    Words of the same place in their blocks are added up first, since the number of a block is the
    same in both lanes: what remains are the numbers of the places, once for a tensor.
    """

    def __init__(self) -> None:
        self._folded = np.empty(BLOCKS_AT_ONCE * BLOCK, np.uint32)
        self._places = np.zeros(BLOCK, np.uint32)
        """Of each place in a block, the sum over the blocks."""
        self._reached = 0
        """Words that were added."""
        self._rest = b""
        """Bytes behind them that are no word yet."""

    def reset(self) -> None:
        """Begin with another tensor."""
        self._places[: self._reached] = 0
        self._reached, self._rest = 0, b""

    def update(self, raw: Any) -> None:
        """Take in the bytes that follow."""
        held = memoryview(raw).cast("B")
        if self._rest:
            missing = min(4 - len(self._rest), len(held))
            self._rest += bytes(held[:missing])
            held = held[missing:]
            if len(self._rest) < 4:
                return
            self._add(np.frombuffer(self._rest, "<u4"))
        whole = len(held) // 4 * 4
        self._rest = bytes(held[whole:])
        self._add(np.frombuffer(held[:whole], "<u4"))

    @property
    def value(self) -> int:
        """Sixty-four bits for all that was taken in."""
        if not self._rest:
            return join_lanes(self._lane(lane) for lane in range(LANES))
        filled = TensorSum()
        filled._reached, filled._places = self._reached, self._places.copy()
        filled._add(np.frombuffer(self._rest.ljust(4, b"\0"), "<u4"))
        return filled.value

    def _lane(self, lane: int) -> int:
        places = self._places[: self._reached]
        numbered = np.multiply(
            places, _numbers(lane)[: len(places)], out=self._folded[: len(places)]
        )
        return int(np.add.reduce(numbered, dtype=np.uint32))

    def _add(self, words: _Words) -> None:
        at = 0
        while at < len(words):
            block, place = divmod(self._reached, BLOCK)
            count = 0 if place else min((len(words) - at) // BLOCK, BLOCKS_AT_ONCE)
            part = words[at : at + (count * BLOCK or BLOCK - place)]
            self._add_to_places(part.reshape(count or 1, -1), place, block)
            at += part.size
            self._reached += part.size

    def _add_to_places(self, words: _Words, place: int, block: int) -> None:
        """Add up whole blocks, or a part of one that begins at this place."""
        fold, places = self._folded[: words.size].reshape(words.shape), self._places[place:]
        numbers = [_of_block((block + at) % 2**32) for at in range(len(words))]
        np.right_shift(words, np.uint32(16), out=fold)
        np.bitwise_xor(fold, words, out=fold)
        np.multiply(fold, np.array(numbers)[:, np.newaxis], out=fold)
        for each in fold:
            np.add(places[: len(each)], each, out=places[: len(each)])
