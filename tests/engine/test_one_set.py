"""Old and new leaves change places, one by one; here without an engine."""

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hotreload.engine.weights.leaf.leaves import Layout, place_copy, signature
from hotreload.engine.weights.memory import one_set
from hotreload.engine.weights.memory.one_set import Trade, stand_ins
from hotreload.errors import CheckpointIncompatible, EngineLost, NotEnoughMemory
from tests.engine import real

SIZES = (64, 4096, 512, 1024)
LARGEST = 4096 * 4


class Model:
    """Four weights and a leaf that is none; others of the same shapes wait on the host."""

    def __init__(self, *, is_split: bool = False) -> None:
        leaves = [self.put(np.full((size, 2), size, np.float16), is_split) for size in SIZES]
        self.leaves: list[Any] = [*leaves, jax.random.key(0)]
        variables = [nnx.Param(leaf) for leaf in leaves]
        self.layout = Layout(("a", "b", "c", "d", "rng"), (*variables, None))
        self.variables = variables
        # Bits that no number has: a copy must keep them.
        self.host = {
            place: np.frombuffer(np.random.default_rng(place).bytes(size * 4), np.float16).reshape(
                size, 2
            )
            for place, size in enumerate(SIZES)
        }

    @staticmethod
    def put(leaf: Any, is_split: bool) -> jax.Array:
        if not is_split:
            return jnp.asarray(leaf)
        mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
        split = NamedSharding(mesh, P("tensor"))  # type: ignore[no-untyped-call]
        put: jax.Array = jax.device_put(leaf, split)
        return put

    def trade(self, on_progress: Callable[[], None] = lambda: None) -> None:
        Trade(self.layout, self.leaves, self.host, on_progress).run()

    def seen(self) -> tuple[Any, ...]:
        """All bits on both sides, and what the compiled model would see of the leaves."""
        on_device = [(np.asarray(leaf).tobytes(), signature(leaf)) for leaf in self.leaves[:-1]]
        return on_device, {place: leaf.tobytes() for place, leaf in self.host.items()}


def device_bytes() -> int:
    gc.collect()
    return real.bytes_of_arrays()


@pytest.mark.parametrize("is_split", [False, True])
def test_a_trade_puts_each_set_in_the_place_of_the_other_and_is_its_own_inverse(
    is_split: bool,
) -> None:
    model = Model(is_split=is_split)
    (before, waiting), rng = model.seen(), model.leaves[-1]
    model.trade()
    after, kept = model.seen()
    assert [bits for bits, _ in after] == list(waiting.values())
    assert [each for _, each in after] == [each for _, each in before]
    assert list(kept.values()) == [bits for bits, _ in before]
    assert model.leaves[-1] is rng
    in_model = [variable.get_raw_value() for variable in model.variables]
    assert all(a is b for a, b in zip(in_model, model.leaves, strict=False))
    model.trade()
    assert model.seen() == (before, waiting)


def test_the_device_never_holds_more_than_one_set_and_its_largest_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, most = Model(), 0
    before = device_bytes()

    def watched(leaf: Any, sharding: Any) -> jax.Array:
        nonlocal most
        # Before it comes, what it replaces has gone; two of a size are there only as it comes.
        assert device_bytes() == before - leaf.nbytes
        new = place_copy(leaf, sharding)
        most = max(most, device_bytes())
        return new

    monkeypatch.setattr(one_set, "place_copy", watched)
    for _ in range(20):
        model.trade()
        assert device_bytes() == before
    assert most <= before + LARGEST


def test_what_is_only_shared_with_the_live_set_stays_where_it_is() -> None:
    model = Model()
    del model.host[1]
    shared = model.leaves[1]
    model.trade()
    assert model.leaves[1] is shared
    assert sorted(model.host) == [0, 2, 3]


def test_each_leaf_is_told_as_progress() -> None:
    told: list[int] = []
    Model().trade(lambda: told.append(1))
    assert len(told) == len(SIZES)


def broken_at(
    monkeypatch: pytest.MonkeyPatch, calls: set[int], fault: Exception | None = None
) -> None:
    """The n-th leaf to be placed finds no room."""
    count = 0

    def place(leaf: Any, sharding: Any) -> jax.Array:
        nonlocal count
        count += 1
        if count in calls:
            raise fault or MemoryError
        return place_copy(leaf, sharding)

    monkeypatch.setattr(one_set, "place_copy", place)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_whatever_leaf_finds_no_room_all_that_was_done_is_walked_back(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    model = Model()
    before, held = model.seen(), device_bytes()
    broken_at(monkeypatch, {at})
    with pytest.raises(NotEnoughMemory):
        model.trade()
    assert model.seen() == before
    assert device_bytes() == held
    model.trade()
    assert model.seen() != before


def test_a_fault_of_the_device_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    before = model.seen()
    broken_at(monkeypatch, {3}, RuntimeError("the link is down"))
    with pytest.raises(RuntimeError, match="the link is down"):
        model.trade()
    assert model.seen() == before


@pytest.mark.parametrize(
    ("calls", "leaf"),
    [({3, 4}, "c"), ({3, 5}, "b"), ({3, 5, 6}, "b"), ({3, 6}, "a")],
    ids=["the old leaf", "one before it", "and its new one too", "the first"],
)
def test_half_a_set_that_cannot_be_walked_back_is_a_lost_engine(
    monkeypatch: pytest.MonkeyPatch, calls: set[int], leaf: str
) -> None:
    broken_at(monkeypatch, calls)
    with pytest.raises(EngineLost, match=f"half exchanged: {leaf} could not be put back"):
        Model().trade()


def test_a_leaf_that_would_recompile_the_model_is_refused_and_all_is_walked_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model(is_split=True)
    before = model.seen()
    model.host[2] = model.host[2].astype(np.float32)
    with pytest.raises(CheckpointIncompatible, match="c cannot be placed like the live one"):
        model.trade()
    assert model.seen()[0] == before[0]


def test_no_step_can_compute_with_what_stands_in_and_it_holds_no_leaf() -> None:
    model = Model()
    others = stand_ins(model.leaves)
    assert len({id(each) for each in others}) == len(model.leaves)
    for each in others:
        with pytest.raises(TypeError):
            jax.jit(lambda x: x)(each)
