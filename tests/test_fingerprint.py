"""The sums behind a fingerprint, against their definition, one element at a time."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotreload import fingerprint as module
from hotreload.fingerprint import TensorSum, fingerprint

WIDTHS = st.sampled_from([1, 2, 4])
WORD = 2**32


def mixed(x: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> shift) * factor % WORD
    return x ^ x >> 16


def by_definition(raw: bytes, width: int, first: int = 0) -> int:
    high = low = 0
    for place in range(0, len(raw), width):
        bits, index = int.from_bytes(raw[place : place + width], "little"), first + place // width
        high += mixed((bits * 0x9E3779B1 + index) % WORD)
        low += mixed(bits ^ index * 0x85EBCA77 % WORD)
    return high % WORD << 32 | low % WORD


def elements(width: int) -> st.SearchStrategy[bytes]:
    return st.integers(0, 60).flatmap(lambda n: st.binary(min_size=n * width, max_size=n * width))


@given(st.data(), WIDTHS, st.integers(1, 20))
def test_the_sum_is_that_of_the_definition_wherever_blocks_and_pieces_end(
    data: st.DataObject, width: int, block: int
) -> None:
    tensors = data.draw(st.lists(elements(width), max_size=3))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "BLOCK", block)
        total = TensorSum()
        for raw in tensors:
            cut = width * data.draw(st.integers(0, len(raw) // width))
            total.update(raw[:cut], width)
            total.update(memoryview(raw)[cut:], width)
            assert total.value == by_definition(raw, width)
            total.reset()


def test_an_index_is_counted_mod_2_to_the_32() -> None:
    total, raw = TensorSum(), bytes(range(200))
    total._reached = WORD - 40  # a tensor of eight gigabytes takes a while
    total.update(raw, 2)
    assert total.value == by_definition(raw, 2, first=WORD - 40)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_blocks_of_the_real_size_give_the_same_sum(width: int) -> None:
    raw = np.random.default_rng(0).bytes(width * (2 * module.BLOCK + 5))
    cut = width * (module.BLOCK - 3)
    at_once, in_two = TensorSum(), TensorSum()
    at_once.update(raw, width)
    in_two.update(raw[:cut], width)
    in_two.update(raw[cut:], width)
    assert at_once.value == in_two.value == in_whole(raw, width)


def in_whole(raw: bytes, width: int) -> int:
    """The definition in arrays as long as the tensor."""
    bits = np.frombuffer(raw, f"u{width}").astype(np.uint32)
    index = np.arange(len(bits), dtype=np.uint32)
    high = mixed_array(bits * np.uint32(0x9E3779B1) + index)
    low = mixed_array(bits ^ index * np.uint32(0x85EBCA77))
    return int(high.sum(dtype=np.uint32)) << 32 | int(low.sum(dtype=np.uint32))


def mixed_array(x: Any) -> Any:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return x ^ x >> np.uint32(16)


def test_a_large_tensor_takes_no_more_memory_than_a_block_of_it() -> None:
    raw = bytes(64 * 2**20)
    tracemalloc.start()
    try:
        TensorSum().update(raw, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 4 * module.BLOCK


def test_a_fingerprint_tells_which_tensor_holds_what_in_whatever_order_they_come() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 2, "b": 1})
    assert fingerprint({"a": 1, "a.b": 2}) == fingerprint({"a.b": 2, "a": 1})
    assert len(fingerprint({})) == 16
