"""Tensors in memory are read as the file that they would make, and judged as it would be."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from hotreload.checkpoint.check import check_checkpoint, findings
from hotreload.checkpoint.file_reader import Changed
from hotreload.checkpoint.fingerprint import TensorSum, fingerprint
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.in_memory import InMemory
from hotreload.errors import BadRequest, CheckpointChanged
from hotreload.types import IN_MEMORY, Served, TensorSpec

Tensors = Mapping[str, Any]


def content_of(memory: InMemory) -> bytes:
    held = bytearray(memory.identity.size)
    memory.open().read_into(memoryview(held), 0)
    return bytes(held)


def loaded(tensors: Tensors, folder: Path) -> Tensors:
    (folder / "made").write_bytes(content_of(InMemory(tensors)))
    return load_file(folder / "made")


def random(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


KINDS: Tensors = {
    "bfloat16": random((3, 5), ml_dtypes.bfloat16),
    "float16": random((2,), np.float16),
    "float32": random((4, 2)),
    "of no dimension": np.zeros(()),
    "empty": np.zeros((0, 4), np.float32),
    "bool": np.array([True, False]),
    "turned": random((8, 6)).T,
    "every second": random((8, 6))[::2],
    "big end first": random((5,)).astype(">f4"),
}


def test_its_bytes_are_those_of_a_file_with_these_tensors(tmp_path: Path) -> None:
    made = loaded(KINDS, tmp_path)
    assert made.keys() == KINDS.keys()
    for name, tensor in KINDS.items():
        assert made[name].shape == tensor.shape
        assert np.array_equal(made[name], tensor)


@given(begin=st.integers(0, 900), size=st.integers(0, 400))
def test_any_piece_of_it_is_that_of_the_file(begin: int, size: int) -> None:
    memory = InMemory(KINDS)
    whole, end = content_of(memory), memory.identity.size
    begin = min(begin, end)
    piece = bytearray(min(size, end - begin))
    memory.open().read_into(memoryview(piece), begin)
    assert piece == whole[begin : begin + len(piece)]


def test_the_order_of_the_names_changes_nothing() -> None:
    backwards = dict(reversed(list(KINDS.items())))
    assert content_of(InMemory(backwards)) == content_of(InMemory(KINDS))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": [1.0, 2.0]}, r"tensor 'a' is a builtins\.list: give an array of numpy or JAX"),
        ({"a": None}, "tensor 'a' is a builtins.NoneType"),
        ({3: np.zeros(2)}, "3 is no name of a tensor"),
    ],
)
def test_what_is_no_array_is_named(tensors: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        InMemory(tensors)


def test_what_was_let_go_of_is_not_read() -> None:
    memory = InMemory({"a": np.zeros(2)})
    memory.drop()
    with pytest.raises(Changed, match="it was let go of"):
        content_of(memory)


# --- the checks -------------------------------------------------------------------------------

GOOD: Tensors = {"a": random((4, 6)), "b": random((6,)), "c": random((2, 3))}
SERVED = Served(
    {name: TensorSpec(tensor.shape, "F32") for name, tensor in GOOD.items()},
    {"torch_dtype": "float32"},
    {},
)


def nan_in(tensor: Any) -> Any:
    spoiled = tensor.copy()
    spoiled.flat[2] = np.nan
    return spoiled


BAD: Mapping[str, Tensors] = {
    "missing": {"a": GOOD["a"], "b": GOOD["b"]},
    "extra": {**GOOD, "d": GOOD["a"]},
    "shape": {**GOOD, "a": GOOD["a"].T},
    "dtype": {**GOOD, "b": GOOD["b"].astype(np.float16)},
    "nonfinite": {**GOOD, "a": nan_in(GOOD["a"])},
    "zeros": {name: np.zeros_like(tensor) for name, tensor in GOOD.items()},
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_is_said_in_the_words_for_a_file(kind: str, tmp_path: Path) -> None:
    in_order = {name: np.ascontiguousarray(tensor) for name, tensor in BAD[kind].items()}
    save_file(in_order, tmp_path / "model.safetensors")
    of_file = findings(tmp_path, SERVED, Policy()).findings
    of_memory = findings(InMemory(BAD[kind]), SERVED, Policy()).findings
    assert {each.code for each in of_memory} == {kind}
    expected = [each.message.replace("model.safetensors", IN_MEMORY) for each in of_file]
    assert [each.message for each in of_memory] == expected


def test_a_dtype_that_no_file_can_have_is_a_finding() -> None:
    wrong = findings(InMemory({"a": np.zeros(2, np.complex64)}), SERVED, Policy()).findings
    assert "the mapping: tensor 'a' has the unknown dtype 'complex64'" in wrong[0].message


def test_its_fingerprint_is_that_of_a_file_with_these_tensors(tmp_path: Path) -> None:
    save_file(dict(GOOD), tmp_path / "model.safetensors")
    of_file = findings(tmp_path, SERVED, Policy(), compute_in="auto").fingerprint
    of_memory = findings(InMemory(GOOD), SERVED, Policy(), compute_in="auto").fingerprint
    assert of_memory == of_file == fingerprint({n: sum_of(t) for n, t in GOOD.items()})


PART: Tensors = {"b": GOOD["b"] + 1}


def test_a_part_is_judged_by_what_it_has() -> None:
    may_lack = Policy(missing="live")
    part = check_checkpoint(None, InMemory(PART), served=SERVED, policy=may_lack)
    assert (part.is_part, list(part.tensors)) == (True, ["b"])
    for kind in ("extra", "shape", "dtype", "nonfinite"):
        spoiled = {name: BAD[kind][name] for name in BAD[kind] if name != "c"}
        found = findings(InMemory(spoiled), SERVED, may_lack).findings
        assert {each.code for each in found} == {kind}


def test_a_part_may_be_all_zeros() -> None:
    zeros = InMemory({"b": np.zeros_like(GOOD["b"])})
    assert not findings(zeros, SERVED, Policy(missing="live")).findings


def test_the_fingerprint_of_a_part_counts_what_stays() -> None:
    whole = findings(InMemory({**GOOD, **PART}), SERVED, Policy(), compute_in="auto")
    beside = {name: sum_of(tensor) for name, tensor in GOOD.items()}
    of_part = findings(
        InMemory(PART), SERVED, Policy(missing="live"), compute_in="auto", beside=beside
    )
    assert of_part.fingerprint == whole.fingerprint


def sum_of(tensor: Any) -> int:
    total = TensorSum()
    total.update(tensor.tobytes())
    return total.value


def test_equal_bytes_are_one_revision_and_others_another() -> None:
    def id_of(tensors: Tensors) -> str:
        checked = check_checkpoint(None, InMemory(tensors), served=SERVED, policy=Policy())
        return checked.revision.id

    copied = {name: tensor.copy() for name, tensor in reversed(list(GOOD.items()))}
    assert id_of(GOOD) == id_of(copied)
    copied["b"][0] += 1
    assert id_of(GOOD) != id_of(copied)


# --- arrays of JAX ----------------------------------------------------------------------------


def test_arrays_of_jax_are_read_like_those_of_numpy(tmp_path: Path) -> None:
    import jax

    ours = {name: jax.device_put(KINDS[name]) for name in ("bfloat16", "float32", "turned")}
    made = loaded(ours, tmp_path)
    assert all(np.array_equal(made[name], KINDS[name]) for name in ours)


def test_an_array_that_was_donated_before_it_was_read_is_a_finding() -> None:
    import jax

    memory = InMemory({"a": jax.device_put(GOOD["a"])})
    memory.array(0)[1].delete()
    served = Served({"a": TensorSpec((4, 6), "F32")}, {}, {})
    with pytest.raises(CheckpointChanged, match="the mapping: a cannot be read"):
        check_checkpoint(None, memory, served=served, policy=Policy(), cancel=threading.Event())


def test_a_key_of_jax_is_no_array_of_numbers() -> None:
    import jax

    with pytest.raises(BadRequest, match="give an array of numpy or JAX"):
        InMemory({"key": jax.random.key(0)})
