"""Leaves that are turned on their devices are those that the host makes, and so are their figures.

On a CPU this is not the way that is taken: here it is asked for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.engine.upstream.thread.recompiles import CompilationCounter
from hotreload.engine.weights.leaf import on_device
from hotreload.engine.weights.leaf.leaf_rules import Heads, Ingredient, Rule
from hotreload.engine.weights.leaf.on_device import can_turn, pays_on_device, put, there_twice
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Made, Reader
from hotreload.engine.weights.load.room_to_load import room_to_make
from hotreload.engine.weights.memory import page_locked
from tests.engine import real

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402

BF16 = ml_dtypes.bfloat16
ODD = 7
"""Elements that fill no word of four bytes."""
MATRIX = Rule((8, 12), axes=(1, 0))
RULES = {
    "kept": Rule((8, 12)),
    "turned": MATRIX,
    "odd": Rule((2, ODD), axes=(1, 0)),
    "three axes": Rule((4, 6, 2), axes=(2, 0, 1)),
    "padded": Rule((8, 12), Heads(0, 4, 2, 4), axes=(1, 0)),
    "repeated": Rule((8, 12), Heads(0, 4, 2, 2, copies=2, empty=2), axes=(1, 0)),
    "a vector": Rule((24,)),
}


@pytest.fixture
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(own, "pays_on_device", can_turn)


def reader_of(root: Path, tensors: dict[str, Any]) -> Reader:
    root.mkdir()
    save_file(tensors, root / "model.safetensors")
    return Reader(real.checked(root), threading.Event(), lambda size: None)


def random(shape: Sequence[int], dtype: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def shardings(shape: Sequence[int]) -> Iterator[Any]:
    """On one device, and split along each axis that two can share, of both kinds of mesh."""
    yield jax.sharding.SingleDeviceSharding(jax.devices()[1])
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",), axis_types=(kind,))
        yield NamedSharding(mesh, spec_of())
        for axis, length in enumerate(shape):
            if length % 2 == 0:
                yield NamedSharding(mesh, spec_of(*(None,) * axis, "tensor"))


def spec_of(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


def assert_same(made: Made, expected: Made, live: Any) -> None:
    assert made.leaf.sharding == live.sharding
    assert type(made.leaf.sharding) is type(live.sharding)
    assert made.leaf.committed == live.committed
    assert made.leaf.dtype == live.dtype
    assert np.asarray(made.leaf).tobytes() == np.asarray(expected.leaf).tobytes()
    assert made.one.sums == expected.one.sums
    assert made.one.rms == pytest.approx(expected.one.rms, rel=1e-5)


CAST = ("kept", "odd", "padded")
"""By day: how the others are cast is shown by these, how they are moved by those of bfloat16."""
CASES = [
    *((kind, BF16) for kind in RULES),
    *((kind, np.float32) for kind in CAST),
    *(
        pytest.param(kind, np.float32, marks=pytest.mark.at_night)
        for kind in RULES
        if kind not in CAST
    ),
]


@pytest.mark.alike  # by our rules; on the newer engine test_hot.py has arrays on accelerators
@pytest.mark.parametrize(("kind", "stored"), CASES)
def test_a_leaf_is_the_one_that_the_host_makes(
    kind: str, stored: Any, tmp_path: Path, on_the_device: Callable[[], None]
) -> None:
    rule, served = RULES[kind], BF16
    tensors = {name: random(rule.shape, stored, at) for at, name in enumerate(("one", "two"))}
    reader = reader_of(tmp_path / "model", tensors)
    lives = [jax.device_put(np.zeros(rule.leaf_shape, served), to) for to in split(rule)]
    recipes = [((Ingredient(name, rule),), live) for live in lives for name in tensors]
    expected = [reader.make_leaves([recipe])[0] for recipe in recipes]
    on_the_device()
    # The second is read into the memory that the first was handed over from.
    made = [reader.make_leaves([recipe])[0] for recipe in recipes]
    for (_, live), one, other in zip(recipes, made, expected, strict=True):
        assert_same(one, other, live)


def split(rule: Rule) -> list[Any]:
    return list(shardings(rule.leaf_shape))


def test_a_leaf_that_is_committed_to_no_device_stays_so(
    tmp_path: Path, on_the_device: Callable[[], None]
) -> None:
    reader = reader_of(tmp_path / "model", {"one": random(MATRIX.shape, BF16)})
    live = jax.numpy.zeros(MATRIX.leaf_shape, BF16)
    assert not live.committed
    recipe = ((Ingredient("one", MATRIX),), live)
    (expected,) = reader.make_leaves([recipe])
    on_the_device()
    assert_same(reader.make_leaves([recipe])[0], expected, live)


def test_experts_are_stacked_there(tmp_path: Path, on_the_device: Callable[[], None]) -> None:
    tensors = {f"e{at}": random(MATRIX.shape, np.float32, at) for at in range(4)}
    reader = reader_of(tmp_path / "model", tensors)
    parts = tuple(Ingredient(name, MATRIX, at) for at, name in enumerate(tensors))
    shape = (len(parts), *MATRIX.leaf_shape)
    lives = [jax.device_put(np.zeros(shape, BF16), to) for to in shardings(shape)]
    expected = [reader.make_leaves([(parts, live)])[0] for live in lives]
    on_the_device()
    for live, each in zip(lives, expected, strict=True):
        assert_same(reader.make_leaves([(parts, live)])[0], each, live)


@pytest.mark.parametrize("expert", [None, 0])
def test_each_device_gets_the_part_of_the_tensor_that_its_part_of_the_leaf_is_made_of(
    expert: int | None,
) -> None:
    """Else all of it would go to each, or from one to the other."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
    of_stack = () if expert is None else (None,)
    shape = (*[4] * len(of_stack), *MATRIX.leaf_shape)
    live = jax.device_put(np.zeros(shape, BF16), NamedSharding(mesh, spec_of(*of_stack, "tensor")))
    raw = put(random(MATRIX.shape, BF16), Ingredient("one", MATRIX, expert), live)
    assert raw.sharding == NamedSharding(mesh, spec_of(None, "tensor"))


def test_programs_are_as_many_as_shapes_and_rules(
    tmp_path: Path, on_the_device: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And two for each number of buffers that tensors take: the first one begins."""
    monkeypatch.setattr(page_locked, "SENT_AT_ONCE", 160)
    shapes = ((16, 10), (16, 10), (16, 10), (10, 18))
    tensors = {str(at): random(shape, BF16, at) for at, shape in enumerate(shapes)}
    reader = reader_of(tmp_path / "model", tensors)
    rules = {name: Rule(tensor.shape, axes=(1, 0)) for name, tensor in tensors.items()}
    to = jax.devices()[0]
    recipes = [
        ((Ingredient(name, rule),), jax.device_put(np.zeros(rule.leaf_shape, BF16), to))
        for name, rule in rules.items()
    ]
    on_the_device()
    counting = CompilationCounter({threading.get_ident()})
    for _ in range(2):
        for recipe in recipes:
            reader.make_leaves([recipe])
        assert counting.count == len(set(shapes)) + 2 * len({2, 3})


def test_the_host_turns_what_lies_in_its_memory_and_what_jax_would_round_twice() -> None:
    live = jax.device_put(np.zeros((2, 2), BF16), jax.devices()[0])
    assert not pays_on_device(live, BF16)
    assert can_turn(live, BF16)
    assert not can_turn(live, np.float64)


def test_on_an_accelerator_it_is_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    live = jax.device_put(np.zeros((2, 2), BF16), jax.devices()[0])
    monkeypatch.setattr(on_device, "is_on_host", lambda leaf: False)
    assert pays_on_device(live, BF16)


def test_room_is_wanted_for_the_tensors_that_threads_hand_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaves = [jax.numpy.zeros(size, BF16) for size in (2, 8, 4)]
    assert there_twice(leaves, 2) == []
    monkeypatch.setattr(on_device, "is_on_host", lambda leaf: False)
    assert [leaf.size for leaf in there_twice(leaves, 2)] == [8, 4]
    assert room_to_make(leaves, {2}, 2) == ([leaves[1], leaves[2]], 0)
