"""Checksums, statistics and signatures of arrays, without an engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotreload.checkpoint.fingerprint import TensorSum
from hotreload.engine.weights import staged_set
from hotreload.errors import CheckpointRejected
from tests.engine import real

assert real  # it makes several devices before JAX looks

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from hotreload.engine.weights.leaf.leaves import fill_with_zeros, like, signature  # noqa: E402
from hotreload.engine.weights.leaf.measures import Measured, measure  # noqa: E402

DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.float8_e4m3fn]
VALUES = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)


def sharded(array: Any, *spec: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
    placed: jax.Array = jax.device_put(array, NamedSharding(mesh, P(*spec)))  # type: ignore[no-untyped-call]
    return placed


def sum_of(array: Any) -> int:
    return measure({"leaf": array}).sums["leaf"]["leaf"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [("tensor", None), (None, "tensor"), (None, None)])
def test_a_checksum_is_the_same_for_every_sharding(dtype: Any, spec: tuple[str | None]) -> None:
    array = jnp.asarray(VALUES, dtype)
    assert sum_of(sharded(array, *spec)) == sum_of(array)


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.uint8, jnp.bool_])
def test_a_checksum_is_what_numpy_alone_makes_of_the_same_bytes(dtype: Any) -> None:
    values = np.asarray(jnp.asarray(VALUES * 20, dtype))
    total = TensorSum()
    total.update(values.tobytes())
    assert sum_of(jnp.asarray(values)) == total.value


@pytest.mark.parametrize("dtype", DTYPES)
def test_swapped_elements_and_rows_change_a_checksum(dtype: Any) -> None:
    array = jnp.asarray(VALUES * 20, dtype)
    sums = {sum_of(array), sum_of(array[::-1]), sum_of(array[:, ::-1]), sum_of(array.T)}
    assert len(sums) == 4


def test_one_bit_in_one_element_changes_a_checksum() -> None:
    flipped = VALUES.copy()
    flipped.view(np.uint32)[3, 5] ^= 1
    assert sum_of(jnp.asarray(flipped)) != sum_of(jnp.asarray(VALUES))


def test_a_fingerprint_tells_which_leaf_holds_what() -> None:
    a, b = jnp.ones((2, 2)), jnp.zeros((2, 2))
    one, other = measure({"a": a, "b": b}), measure({"a": b, "b": a})
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == measure({"b": b, "a": a}).fingerprint
    assert len(one.fingerprint) == 16


def test_a_leafs_checksum_fits_a_gauge() -> None:
    checksums = measure({str(i): jnp.asarray(VALUES[i]) for i in range(16)}).checksums
    assert all(int(float(value)) == value <= 2**53 for value in checksums.values())


def aligned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy at an address that `device_put` on CPU takes as it is, without a copy."""
    room = np.empty(values.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy: np.ndarray[Any, Any] = room[start : start + values.nbytes].view(values.dtype)
    copy = copy.reshape(values.shape)
    copy[:] = values
    return copy


@pytest.mark.parametrize(
    "place",
    [
        lambda: sharded(VALUES, None, "tensor"),
        lambda: sharded(VALUES, "tensor", None),
        lambda: jax.device_put(VALUES, jax.devices()[0]),
        lambda: jnp.asarray(VALUES),
    ],
    ids=["columns", "rows", "one device", "uncommitted"],
)
def test_a_placed_leaf_has_the_live_ones_signature_and_memory_of_its_own(
    place: Callable[[], jax.Array],
) -> None:
    source, live = aligned(VALUES), place()
    leaf = like(source, live)
    leaf.block_until_ready()
    source[:] = 0
    assert signature(leaf) == signature(live)
    assert np.array_equal(np.asarray(leaf), VALUES)


def test_zeroing_overwrites_nan_in_place_and_keeps_the_signature() -> None:
    buffer = sharded(np.full((16, 24), np.nan, np.float32), None, "tensor")
    before = signature(buffer)
    clean = fill_with_zeros(buffer)
    assert buffer.is_deleted()
    assert signature(clean) == before
    assert not np.asarray(clean).any()


def measured(rms: float) -> Measured:
    return Measured({"leaf": {"leaf": 1}}, {"leaf": rms})


@pytest.mark.parametrize("rms", [101.0, 0.0099, 0.0, float("nan"), float("inf")])
def test_a_leaf_that_changed_its_size_too_much_is_refused(rms: float) -> None:
    with pytest.raises(CheckpointRejected, match="leaf") as refused:
        staged_set.check_drift(measured(rms), measured(1.0), 100)
    assert refused.value.code == "drift"


def test_a_leaf_that_changed_its_size_a_little_is_fine() -> None:
    staged_set.check_drift(measured(99.0), measured(1.0), 100)
    staged_set.check_drift(measured(0.0), measured(0.0), 100)
