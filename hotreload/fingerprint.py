"""Fingerprints of tensors: the same number from a file's bytes and from what a device holds.

A tensor's bytes, in the file's order, are read as little-endian words of four; zeros fill up the
last one. Each word is folded and multiplied by two numbers that belong to its place, and both
products are summed mod 2**32. A sum needs no order, so every sharding gives the same.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import xxhash

BLOCK = 1 << 16
"""Words whose places have numbers of their own; a third number tells one block from another."""
LANES = 2

Words = np.ndarray[Any, np.dtype[np.uint32]]


def mixed(x: Any) -> Any:
    """The finaliser of MurmurHash3, of numpy's or JAX's uint32: each bit moves every bit."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def place_number(place: Any, lane: int) -> Any:
    """The number of a place in a block; LANES as `lane` gives the number of a block."""
    return mixed(place + np.uint32(lane * BLOCK + 1)) | np.uint32(1)


def folded(words: Any) -> Any:
    """Words with their high bits in the low ones too: what is multiplied loses high bits."""
    return words ^ (words >> np.uint32(16))


@cache
def _numbers(lane: int) -> Words:
    numbers: Words = place_number(np.arange(BLOCK, dtype=np.uint32), lane)
    return numbers


def sum_of(tensor: np.ndarray[Any, Any]) -> int:
    """The number of a tensor whose elements lie in the file's order, in bounded memory."""
    sums = [0] * LANES
    fold, product = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for block, words in enumerate(_blocks(tensor)):
        here, size = int(place_number(np.array([block], np.uint32), LANES)[0]), len(words)
        np.right_shift(words, np.uint32(16), out=fold[:size])
        np.bitwise_xor(fold[:size], words, out=fold[:size])
        for lane in range(LANES):
            np.multiply(fold[:size], _numbers(lane)[:size], out=product[:size])
            sums[lane] += here * int(np.add.reduce(product[:size], dtype=np.uint32))
    return number_of(*sums)


def number_of(first: int, second: int) -> int:
    """One number of 64 bits of the two sums."""
    return first % 2**32 << 32 | second % 2**32


def _blocks(tensor: np.ndarray[Any, Any]) -> Iterator[Words]:
    raw = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    whole = len(raw) // 4 * 4
    words = raw[:whole].view("<u4") if raw.ctypes.data % 4 == 0 else raw[:whole].copy().view("<u4")
    last = len(words) // BLOCK * BLOCK
    for begin in range(0, last, BLOCK):
        yield words[begin : begin + BLOCK]
    rest = np.zeros(len(raw) - last * 4 + 3 & ~3, np.uint8)
    rest[: len(raw) - last * 4] = raw[last * 4 :]
    if len(rest):
        yield rest.view("<u4")


def fingerprint_of(sums: Mapping[str, int]) -> str:
    """Sixteen hex digits for a whole set of tensors, from the number of each by its name."""
    lines = (f"{name}:{value:016x}\n" for name, value in sorted(sums.items()))
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
