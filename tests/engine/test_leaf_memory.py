"""What a freed leaf leaves is used again, and only once nothing lies there any more."""

import gc
import mmap
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Reader
from hotreload.engine.weights.memory import host_arrays
from hotreload.engine.weights.memory.host_arrays import LEAST_KEPT, LeafMemory, lay
from tests.bench.test_memory import lazily_freed
from tests.engine import real

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402

SIZE = 4 * LEAST_KEPT


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> LeafMemory:
    """Memory of this test alone."""
    memory = LeafMemory()
    for module in (own, host_arrays):
        monkeypatch.setattr(module, "fresh", memory.take)
    return memory


def begin_of(array: Any) -> int:
    return int(np.asarray(array).ctypes.data)


def placed(memory: LeafMemory, value: int) -> jax.Array:
    """A leaf that lies in memory of ours."""
    held = memory.take(SIZE).view(np.uint16).reshape(1024, -1)
    held[...] = value
    leaf: jax.Array = jax.device_put(held, jax.devices()[0])
    assert begin_of(leaf) == held.ctypes.data, "JAX takes it over"
    return leaf


def test_memory_that_a_leaf_leaves_is_used_again(memory: LeafMemory) -> None:
    leaf = placed(memory, 1)
    begin = begin_of(leaf)
    assert memory.spare == 0
    del leaf
    gc.collect(0)  # JAX lets go of what it took over at such a look, or after a hundred leaves
    assert memory.spare == SIZE
    assert begin_of(memory.take(SIZE)) == begin


HELD_BY: dict[str, Callable[[jax.Array], Any]] = {
    "the leaf": lambda leaf: leaf,
    "its values": np.asarray,
    "a part of its values": lambda leaf: np.asarray(leaf)[3:5, 7:9].T,
    "its like under another sharding": lambda leaf: jax.device_put(
        leaf, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ),
    "its shard": lambda leaf: leaf.addressable_shards[0].data,
    "a view of it by another way": memoryview,
}


@pytest.mark.parametrize("what", HELD_BY)
def test_memory_is_not_used_again_while_anything_lies_there(memory: LeafMemory, what: str) -> None:
    leaf = placed(memory, 7)
    held = HELD_BY[what](leaf)
    del leaf
    gc.collect(0)
    assert memory.spare == 0
    assert memory.take(SIZE).ctypes.data != begin_of(held)
    memory.take(SIZE)[...] = 0xFF
    assert (np.asarray(held) == 7).all()
    del held
    gc.collect(0)
    assert memory.spare >= SIZE


def test_memory_is_not_used_again_while_a_program_reads_it(memory: LeafMemory) -> None:
    """JAX computes behind the caller, who may have let go of the leaf by then."""
    slow = jax.jit(lambda leaf: jax.lax.fori_loop(0, 200, lambda _, x: x * 3 + leaf, leaf))
    expected = slow(placed(memory, 5)).block_until_ready()
    result = slow(placed(memory, 5))
    for _ in range(4):
        memory.take(SIZE)[...] = 0xFF
    assert np.array_equal(result, expected)


def test_spare_memory_makes_way_for_leaves_of_another_size() -> None:
    memory = LeafMemory()
    many = [memory.take(SIZE) for _ in range(10)]
    many.clear()
    assert (memory.held, memory.spare) == (0, 10 * SIZE)
    larger = [memory.take(2 * SIZE) for _ in range(3)]
    assert (memory.held, memory.spare) == (6 * SIZE, 4 * SIZE)
    larger += [memory.take(2 * SIZE) for _ in range(3)]
    assert (memory.held, memory.spare) == (12 * SIZE, 0)


def test_the_system_may_take_spare_memory(memory: LeafMemory) -> None:
    """So it counts as free where room is asked for, and nobody must be asked to give it up."""
    taken = memory.take(8 * SIZE)
    taken[...] = 1
    before = lazily_freed()
    del taken
    assert lazily_freed() - before >= 7 * SIZE


def test_a_system_without_such_a_loan_gets_it_back(
    memory: LeafMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "MADV_FREE", -1)
    taken = memory.take(SIZE)
    del taken
    assert memory.spare == 0


def test_a_second_set_lies_in_memory_of_the_first_one(tmp_path: Path, memory: LeafMemory) -> None:
    """And what is kept of the first one stays what it was."""
    shapes = {"turned": (1024, 2048), "kept": (2048, 1024), "heads": (2048, 512)}
    chance = np.random.default_rng(0)
    sets = []
    for step in (1, 2, 3):
        tensors = {
            name: chance.integers(0x3C00, 0x3D00, shape, np.uint16).view(ml_dtypes.bfloat16)
            for name, shape in shapes.items()
        }
        (folder := tmp_path / str(step)).mkdir()
        save_file(tensors, folder / "model.safetensors")
        sets.append((tensors, folder))
    axes = {"turned": (1, 0), "kept": None, "heads": (1, 0)}

    def make_leaves(folder: Path) -> dict[str, Any]:
        reader = Reader(real.checked(folder), Event(), lambda size: None)
        leaves = {}
        for name, shape in shapes.items():
            rule = Rule(shape, axes=axes[name])
            live = jax.device_put(np.zeros(rule.leaf_shape, ml_dtypes.bfloat16), jax.devices()[0])
            leaves[name] = reader.make_leaves([((Ingredient(name, rule),), live)])[0].leaf
        reader.close()
        return leaves

    def check(leaves: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, leaf in leaves.items():
            assert np.array_equal(leaf, tensors[name].transpose(axes[name] or (0, 1)))

    first = make_leaves(sets[0][1])
    check(first, sets[0][0])
    kept = {"turned": first.pop("turned")}
    first.clear()
    gc.collect(0)
    before = memory.held + memory.spare
    second = make_leaves(sets[1][1])
    assert memory.held + memory.spare - before == kept["turned"].nbytes, "one leaf has new memory"
    third = make_leaves(sets[2][1])
    check(kept, sets[0][0])
    check(second, sets[1][0])
    check(third, sets[2][0])


@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("axes", [(1, 0), (2, 0, 1), (1, 2, 0), (0, 2, 1)])
def test_what_is_laid_down_is_what_numpy_makes(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, axes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(host_arrays, "TURNED", (8, 4))
    shape = (37, 23, 5)[: len(axes)]
    array = np.random.default_rng(0).integers(0, 99, shape).astype(dtype).transpose(axes)
    memory = np.zeros(array.shape, dtype)
    lay(array, memory)
    assert np.array_equal(memory, np.ascontiguousarray(array))


def test_a_leaf_is_turned_in_pieces_and_placed_without_a_copy(
    memory: LeafMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call around a piece takes time, whatever its size, and `device_put` twice as much."""
    pieces, transpose = list[tuple[int, Any]](), host_arrays._transpose

    def counted(piece: Any) -> Any:
        pieces.append((piece.nbytes, piece.dtype))
        return transpose(piece)

    monkeypatch.setattr(host_arrays, "_transpose", counted)
    live = jax.device_put(np.zeros((2048, 4096), ml_dtypes.bfloat16), jax.devices()[0])
    for slow in ("device_put", "make_array_from_callback"):
        monkeypatch.setattr(jax, slow, lambda *_: pytest.fail("it takes longer"))
    held = memory.take(live.nbytes).view(live.dtype).reshape(live.shape)
    lay(np.ones((4096, 2048), live.dtype).T, held)
    assert pieces == [(512 << 10, np.uint16)] * 32
    monkeypatch.undo()
    (leaf,) = own._place([held], [live])
    assert (begin_of(leaf), leaf.sharding) == (held.ctypes.data, live.sharding)


def test_leaves_lie_in_large_pages_where_the_system_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, mapped = list[int](), mmap.mmap

    class Mapped(mmap.mmap):
        def madvise(self, advice: int, *place: int) -> None:
            asked.append(advice)
            raise OSError("this system has none")

    monkeypatch.setattr(mmap, "mmap", Mapped)
    assert len(LeafMemory().take(SIZE)) == SIZE
    monkeypatch.setattr(mmap, "mmap", mapped)
    assert asked[0] == mmap.MADV_HUGEPAGE


def test_a_tensor_is_read_and_measured_in_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step another thread may take Python's lock, and then this one waits for it."""
    tensor = np.full((1024, 4096), 3, ml_dtypes.bfloat16)
    save_file({"it": tensor}, tmp_path / "model.safetensors")
    steps: Counter[str] = Counter()
    reader = Reader(real.checked(tmp_path), Event(), lambda size: None)
    live = jax.device_put(tensor, jax.devices()[0])

    def count(module: Any, name: str) -> None:
        step = getattr(module, name)

        def counted(*args: Any, **more: Any) -> Any:
            steps[name] += 1
            return step(*args, **more)

        monkeypatch.setattr(module, name, counted)

    count(os, "preadv")
    count(np, "dot")
    count(np, "right_shift")
    reader.make_leaves([((Ingredient("it", Rule(tensor.shape)),), live)])
    reader.close()
    assert steps == {"preadv": 4, "dot": 16, "right_shift": 8}, "of 8 MiB"


def test_what_is_small_is_left_to_python() -> None:
    small = host_arrays.fresh(LEAST_KEPT - 1)
    assert (len(small), small.ctypes.data % host_arrays.ALIGNED) == (LEAST_KEPT - 1, 0)
