"""The sums behind a fingerprint, against their definition, one word at a time."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotreload.checkpoint import fingerprint as module
from hotreload.checkpoint.fingerprint import BLOCK, TensorSum, fingerprint

WORD = 2**32


def mixed(x: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> shift) * factor % WORD
    return x ^ x >> 16


def by_definition(raw: bytes, first: int = 0) -> int:
    lanes = [0, 0]
    for at in range(0, len(raw), 4):
        word, index = int.from_bytes(raw[at : at + 4], "little"), first + at // 4
        block = mixed((index // BLOCK + 2 * BLOCK + 1) % WORD) | 1
        for lane in range(2):
            place = mixed(index % BLOCK + lane * BLOCK + 1) | 1
            lanes[lane] += (word ^ word >> 16) * place * block
    return lanes[0] % WORD << 32 | lanes[1] % WORD


def sum_of(*pieces: bytes) -> int:
    total = TensorSum()
    for piece in pieces:
        total.update(piece)
    return total.value


@given(st.lists(st.lists(st.binary(max_size=50), max_size=5), max_size=3))
def test_the_sum_is_that_of_the_definition_wherever_pieces_end(tensors: list[list[bytes]]) -> None:
    total = TensorSum()
    for pieces in tensors:
        for piece in pieces:
            total.update(memoryview(piece))
        assert total.value == by_definition(b"".join(pieces))
        total.reset()


@pytest.mark.parametrize("cut", [BLOCK - 3, BLOCK, BLOCK + 1])
def test_the_sum_is_that_of_the_definition_wherever_blocks_end(cut: int) -> None:
    raw = np.random.default_rng(0).bytes(4 * (BLOCK + 5) + 3)
    assert sum_of(raw[: 4 * cut], raw[4 * cut :]) == sum_of(raw) == by_definition(raw)


def test_a_place_is_counted_beyond_eight_gigabytes() -> None:
    total, raw = TensorSum(), bytes(range(200))
    total._reached = WORD - 40  # such a tensor takes a while
    total.update(raw)
    assert total.value == by_definition(raw, first=WORD - 40)


@pytest.mark.parametrize("bit", [0, 7, 15, 16, 31])
@pytest.mark.parametrize("places", [(0, 1), (5, BLOCK + 5), (BLOCK - 1, BLOCK)])
def test_a_bit_that_moves_to_another_place_shows(bit: int, places: tuple[int, int]) -> None:
    sums = set()
    for place in places:
        words = np.zeros(2 * BLOCK, np.uint32)
        words[place] = 1 << bit
        sums.add(sum_of(words.tobytes()))
    assert len(sums - {0}) == 2


def test_signs_that_are_swapped_show_in_both_lanes() -> None:
    values = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    whole = sum_of(values.tobytes())
    for at in range(0, 4000, 7):
        other = values.copy()
        other[at], other[at + 90] = -values[at], -values[at + 90]
        changed = sum_of(other.tobytes())
        assert changed >> 32 != whole >> 32
        assert changed % WORD != whole % WORD


def test_a_large_tensor_takes_no_more_memory_than_a_block_of_it() -> None:
    raw = bytes(64 * 2**20)
    tracemalloc.start()
    try:
        TensorSum().update(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 4 * module.BLOCK


def test_a_fingerprint_tells_which_tensor_holds_what_in_whatever_order_they_come() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 2, "b": 1})
    assert fingerprint({"a": 1, "a.b": 2}) == fingerprint({"a.b": 2, "a": 1})
    assert len(fingerprint({})) == 16
