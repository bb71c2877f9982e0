"""Weights are copied from one engine's devices to another's; here without an engine."""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hotreload.checkpoint.file_reader import Cancelled
from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.leaves import Layout, signature
from hotreload.engine.weights.leaf.measures import Measured, measure
from hotreload.engine.weights.memory import headroom
from hotreload.engine.weights.staged_set import move_to_host
from hotreload.engine.weights.twins import Original, TwinCopier, take_the_place
from hotreload.engine.weights.weights import Destination, Weights
from hotreload.errors import CheckpointIncompatible, NotEnoughMemory, TryAgain
from hotreload.quiet import Quiet
from hotreload.types import Revision, Staged
from tests.engine import real

assert real.GREEDY  # it makes four devices of one CPU, before JAX looks for any

SHAPES = {"a": (64, 2), "b": (4096, 2), "c": (512, 2)}
PARTS = {path: (Ingredient(f"{path}.weight", Rule(shape)),) for path, shape in SHAPES.items()}
HERE = Destination()


class Side:
    """The leaves of one engine: in an order of its own, on devices of its own."""

    def __init__(self, order: str, first_device: int, seed: int, devices: int = 1) -> None:
        at = jax.devices()[first_device : first_device + devices]
        self.sharding = NamedSharding(Mesh(np.array(at), ("tensor",)), P("tensor"))  # type: ignore[no-untyped-call]
        paths = tuple(order)
        leaves = [self.leaf(path, seed) for path in paths]
        self.layout = Layout(paths, tuple(map(self.variable, paths, leaves)))
        self.weights = Weights(leaves, self.measured(leaves), paths=paths)

    def leaf(self, path: str, seed: int) -> Any:
        if path == "r":
            return jax.random.key(seed)
        # Bits that no number has: a copy must keep them.
        bits = np.random.default_rng([seed, ord(path)]).bytes(math.prod(SHAPES[path]) * 2)
        return jax.device_put(np.frombuffer(bits, np.float16).reshape(SHAPES[path]), self.sharding)

    @staticmethod
    def variable(path: str, leaf: Any) -> Any:
        return None if path == "r" else nnx.Param(leaf)

    def measured(self, leaves: list[Any]) -> Measured:
        return measure(self.layout.by_path(leaves), PARTS)

    @property
    def original(self) -> Original:
        return Original(staged(self.weights))

    def copy_weights(self, original: Original, place: Destination = HERE) -> Weights:
        copying = TwinCopier(self.layout, PARTS, self.weights, Quiet(threads=2, priority="normal"))
        return copying.copy_weights(original, place, cancel=threading.Event())

    def bits(self, weights: Weights) -> Mapping[str, bytes]:
        held = weights.host or self.layout.by_path(weights.leaves)
        paths = self.layout.paths
        return {
            paths[key] if isinstance(key, int) else key: np.asarray(leaf).tobytes()
            for key, leaf in held.items()
        }


def staged(weights: Weights) -> Staged:
    return Staged(Revision("7"), weights, "", weights.measured.checksums, 0)


@pytest.fixture(params=[1, 2])
def there(request: pytest.FixtureRequest) -> Side:
    return Side("abrc", first_device=0, seed=1, devices=request.param)


@pytest.fixture
def here(there: Side) -> Side:
    return Side("cba", first_device=2, seed=2, devices=len(there.sharding.device_set))


def test_a_copy_has_every_bit_in_its_own_place_like_what_is_live(there: Side, here: Side) -> None:
    made = here.copy_weights(there.original)
    assert here.bits(made) == there.bits(there.weights)
    assert made.measured.sums == there.weights.measured.sums
    assert [*map(signature, made.leaves)] == [*map(signature, here.weights.leaves)]


def test_what_waits_on_a_host_is_copied_and_what_is_to_wait_on_one(there: Side, here: Side) -> None:
    bits = there.bits(there.weights)
    on_host = here.copy_weights(there.original, Destination(is_host=True))
    assert on_host.leaves == []
    assert here.bits(on_host) == bits
    there.weights = move_to_host(there.weights, there.layout, [None] * 4)
    for place in (HERE, Destination(is_host=True)):
        made = here.copy_weights(there.original, place)
        assert here.bits(made) == bits
        assert made.measured.sums == there.weights.measured.sums
        for at, kept in made.host.items():
            original = there.weights.host[there.layout.place_of(here.layout.paths[at])]
            assert not np.shares_memory(np.asarray(kept), np.asarray(original))


def test_what_is_released_there_while_it_is_copied_is_copied_all_the_same(
    there: Side, here: Side
) -> None:
    bits, original = there.bits(there.weights), there.original
    there.weights.drop()
    assert here.bits(here.copy_weights(original)) == bits
    with pytest.raises(TryAgain) as gone:
        _ = there.original
    assert gone.value.code == "original_gone"


def test_what_is_the_same_here_already_is_shared(there: Side, here: Side) -> None:
    there.weights.sources = {"a.weight": "same", "b.weight": "other", "c.weight": "same"}
    here.weights.sources = {"a.weight": "same", "b.weight": "one"}
    here.weights.leaves[2] = jax.device_put(np.asarray(there.weights.leaves[0]), here.sharding)
    here.weights.measured = here.measured(here.weights.leaves)
    made = here.copy_weights(there.original)
    is_shared = [a is b for a, b in zip(made.leaves, here.weights.leaves, strict=True)]
    assert is_shared == [False, False, True]  # c is not known here, and b is another one
    assert here.bits(made) == there.bits(there.weights)
    assert made.sources == there.weights.sources
    assert here.copy_weights(there.original, Destination(is_host=True)).host.keys() == {0, 1, 2}


def test_what_nobody_knows_the_tensors_of_is_copied_whole(there: Side, here: Side) -> None:
    there.weights.sources = {}  # noise was put on it
    here.weights.sources = {"a.weight": "same", "b.weight": "one", "c.weight": "same"}
    made = here.copy_weights(there.original)
    assert not any(a is b for a, b in zip(made.leaves, here.weights.leaves, strict=True))
    assert here.bits(made) == there.bits(there.weights)


def test_a_copy_that_is_another_is_a_fault_of_the_machine_and_of_no_checkpoint(
    there: Side, here: Side
) -> None:
    leaves = there.weights.leaves
    leaves[1] = leaves[1].at[5, 1].set(jnp.float16(0.5))
    for place in (HERE, Destination(is_host=True)):
        with pytest.raises(TryAgain, match="b of 7 is another one after it was copied") as other:
            here.copy_weights(there.original, place)
        assert (other.value.code, other.value.findings) == ("copy_differs", ("b",))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda leaf: None, "has no b"),
        (lambda leaf: leaf[:-2], r"b is float16\[4094, 2\] in .*, and float16\[4096, 2\] here"),
        (lambda leaf: leaf.astype(jnp.bfloat16), r"b is bfloat16"),
    ],
)
def test_an_engine_of_another_model_is_no_twin(
    there: Side, here: Side, change: Callable[[Any], Any], words: str
) -> None:
    there.weights.leaves[1] = change(there.weights.leaves[1])
    if there.weights.leaves[1] is None:
        there.weights.paths = ("a", "x", "r", "c")
    with pytest.raises(CheckpointIncompatible, match=words):
        here.copy_weights(there.original)


def test_a_copy_that_has_no_room_here_is_not_begun(
    there: Side, here: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headroom, "host_bytes_free", lambda: 100)
    for place in (HERE, Destination(is_host=True)):
        with pytest.raises(NotEnoughMemory):
            here.copy_weights(there.original, place)


def test_a_copy_that_nobody_wants_any_more_ends(there: Side, here: Side) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        TwinCopier(here.layout, PARTS, here.weights, Quiet(priority="normal")).copy_weights(
            there.original, HERE, cancel=cancel
        )


def test_a_new_engine_takes_the_dtype_of_its_twin_and_its_own_devices(
    there: Side, here: Side
) -> None:
    b = here.layout.place_of("b")
    here.weights.leaves[b] = here.weights.leaves[b].astype(jnp.bfloat16)
    take_the_place(there.original, here.weights.leaves, here.layout)
    assert here.bits(here.weights) == there.bits(there.weights)
    in_model = [variable.get_raw_value() for variable in here.layout.variables if variable]
    assert all(a is b for a, b in zip(in_model, here.weights.leaves, strict=True))
    assert {leaf.sharding for leaf in here.weights.leaves} == {here.sharding}
