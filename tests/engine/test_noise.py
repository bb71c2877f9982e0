"""Noise on a set of leaves, without an engine."""

import threading
from typing import Any

import numpy as np
import pytest

from hotreload.errors import CheckpointIncompatible, CheckpointRejected
from hotreload.types import Noise
from tests.engine import real

assert real  # it makes several devices before JAX looks

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from hotreload.checkpoint.file_reader import Cancelled  # noqa: E402
from hotreload.engine.weights.leaf.leaves import Layout, signature  # noqa: E402
from hotreload.engine.weights.leaf.measures import measure  # noqa: E402
from hotreload.engine.weights.noise import with_noise  # noqa: E402
from hotreload.engine.weights.weights import Weights  # noqa: E402

FLOATS = {name: np.full((8, 6), at, np.float32) for at, name in enumerate("abcd")}


class Set:
    """Some float leaves, a quantised one and one that is no weight, in a given order."""

    def __init__(
        self, order: str = "abcd", dtype: Any = jnp.bfloat16, spec: tuple[str | None, ...] = ()
    ) -> None:
        leaves = [jnp.asarray(FLOATS[name], dtype) for name in order]
        if spec:
            mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
            placed = NamedSharding(mesh, P(*spec))  # type: ignore[no-untyped-call]
            leaves = [jax.device_put(leaf, placed) for leaf in leaves]
        leaves += [jnp.ones((3,), jnp.int8), jax.random.key(0)]
        variables = [*(nnx.Param(leaf) for leaf in leaves[:-1]), None]
        self.layout = Layout((*order, "quantised", "rng"), tuple(variables))
        self.weights = Weights(leaves, measure(self.layout.by_path(leaves)))

    def noisy(self, noise: Noise) -> Weights:
        return self.noisy_unless(noise, threading.Event())

    def noisy_unless(self, noise: Noise, cancel: threading.Event) -> Weights:
        return with_noise(noise, layout=self.layout, live=self.weights, parts={}, cancel=cancel)

    def changed(self, noise: Noise) -> set[str]:
        before, after = self.weights.measured.sums, self.noisy(noise).measured.sums
        return {path for path in before if before[path] != after[path]}


@pytest.mark.parametrize("count", [1, 3, 4])
def test_as_many_float_leaves_change_as_were_asked_for(count: int) -> None:
    changed = Set().changed(Noise(3, 0.5, count))
    assert len(changed) == count
    assert changed <= FLOATS.keys()


def test_the_seed_decides_which() -> None:
    chosen = {tuple(Set().changed(Noise(seed, 0.5, 1))) for seed in range(20)}
    assert len(chosen) == 4


@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_neither_the_order_of_the_leaves_nor_their_sharding_matters(seed: int) -> None:
    noise = Noise(seed, 0.5, 2)
    sets = [
        Set(),
        Set("dbca"),
        Set("abcd", spec=("tensor", None)),
        Set("cadb", spec=(None, "tensor")),
    ]
    assert len({each.noisy(noise).measured.fingerprint for each in sets}) == 1


def test_the_noise_is_as_large_as_asked() -> None:
    live = Set(dtype=jnp.float32)
    live.weights.leaves[0] = jnp.zeros((400, 400), jnp.float32)
    noisy = live.noisy(Noise(0, 0.25, 4))
    assert noisy.measured.rms["a"] == pytest.approx(0.25, rel=0.02)


def test_a_noisy_set_shares_what_got_no_noise_and_keeps_every_signature() -> None:
    live = Set("abcd", spec=("tensor", None))
    noisy = live.noisy(Noise(0, 0.5, 1))
    pairs = [(live.weights.leaves[at], noisy.leaves[at]) for at in live.layout.places]
    assert all(signature(new) == signature(old) for old, new in pairs)
    ((old, new),) = [(old, new) for old, new in pairs if old is not new]
    pointers = [
        {shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards}
        for leaf in (old, new)
    ]
    assert not pointers[0] & pointers[1]
    noisy.free()
    assert measure(live.layout.by_path(live.weights.leaves)) == live.weights.measured


@pytest.mark.parametrize(
    ("noise", "kind", "words"),
    [
        (Noise(0, 1e-9, 4), CheckpointIncompatible, "rounded away"),
        (Noise(0, 1e38, 1), CheckpointRejected, "smaller scale"),
        (Noise(0, 0.5, 5), CheckpointIncompatible, "the model has 4 that can take it"),
    ],
)
def test_noise_that_makes_no_other_sound_weights_is_refused(
    noise: Noise, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        Set().noisy(noise)


def test_a_cancel_ends_it() -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        Set().noisy_unless(Noise(), cancel)
