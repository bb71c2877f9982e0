"""Arrays of JAX become, where they lie, what files of the same bytes become."""

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hotreload.checkpoint.arrangement import arrange
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.in_memory import InMemory
from hotreload.engine.weights.leaf.differences import change_of, same_bits
from hotreload.engine.weights.leaf.from_arrays import (
    Borrower,
    Copier,
    InDoubt,
    _part,
    check_not_empty,
    groups,
    round_bits,
)
from hotreload.engine.weights.leaf.leaf_rules import Heads, Ingredient, Rule
from hotreload.engine.weights.leaf.leaves import signature
from hotreload.engine.weights.leaf.measures import join_measures
from hotreload.engine.weights.load.own import Made, Reader
from hotreload.errors import CheckpointChanged
from hotreload.types import Checkpoint, Served, TensorSpec
from tests.engine import real

pytestmark = pytest.mark.real_engine
assert real.ARGS, "it gives JAX several devices"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

Arrays = dict[str, Any]
Parts = Sequence[Ingredient]
BF16 = np.dtype(ml_dtypes.bfloat16)
HEADS = Heads(axis=0, count=2, length=3, padded=4, copies=2)
RULES: Mapping[str, Parts] = MappingProxyType(
    {
        "as it is": [Ingredient("a", Rule((4, 6)))],
        "of an odd size": [Ingredient("a", Rule((3,)))],
        "turned": [Ingredient("a", Rule((6, 4), axes=(1, 0)))],
        "padded, repeated and turned": [Ingredient("a", Rule((6, 4), HEADS, (1, 0)))],
        "of experts": [Ingredient(f"{at}", Rule((4, 6), axes=(1, 0)), at) for at in (1, 0, 3, 2)],
    }
)


def any_values(shape: tuple[int, ...], seed: int, dtype: Any = BF16) -> Any:
    """Numbers of every size, also those that arithmetic takes for zero."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = np.random.default_rng(seed).integers(0, np.iinfo(unsigned).max, shape, unsigned)
    values = bits.view(dtype)
    values[~(np.abs(values.astype(np.float64)) < 1e15)] = 1e-40  # the squares are to be numbers
    return values


def checked(arrays: Mapping[str, Any], *, is_unread: bool, is_part: bool = False) -> Checkpoint:
    spelt = {name: "F32" if each.dtype == np.float32 else "BF16" for name, each in arrays.items()}
    specs = {name: TensorSpec(each.shape, spelt[name]) for name, each in arrays.items()}
    policy = Policy(missing="live" if is_part else "reject")
    memory, served = InMemory(arrays, is_unread=is_unread), Served(specs, {}, {})
    return check_checkpoint(None, memory, served=served, policy=policy)


def made_by(kind: Any, parts: Parts, live: Any, arrays: Arrays, *, is_part: bool = False) -> Made:
    checkpoint = checked(arrays, is_unread=kind is not Reader, is_part=is_part)
    reader = kind(checkpoint, threading.Event(), lambda size: None)
    (made,) = reader.make_leaves([(parts, live)])
    reader.close()
    return made  # type: ignore[no-any-return]


def one_device() -> Any:
    return jax.sharding.SingleDeviceSharding(jax.devices()[1])


def split(kind: AxisType) -> Any:
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",), axis_types=(kind,))
    return NamedSharding(mesh, P("tensor"))  # type: ignore[no-untyped-call]


@pytest.fixture(params=["one device", "two", "two, which each step must name"])
def place(request: pytest.FixtureRequest) -> Any:
    kinds = {"one device": None, "two": AxisType.Auto}
    kind = kinds.get(request.param, AxisType.Explicit)
    return one_device() if kind is None else split(kind)


@pytest.fixture(params=[Copier, Borrower])
def kind(request: pytest.FixtureRequest) -> Any:
    """Of an accelerator's arrays, and of those in the host's memory."""
    return request.param


def live_for(parts: Parts, place: Any, dtype: Any = BF16) -> Any:
    shape = (len(parts),) * (parts[0].expert is not None) + parts[0].rule.leaf_shape
    if isinstance(place, NamedSharding) and shape[0] % 2:
        place = NamedSharding(place.mesh, P())  # type: ignore[no-untyped-call]
    return jax.device_put(any_values(shape, 9, dtype), place)


def arrays_for(parts: Parts, dtype: Any = BF16) -> Arrays:
    return {
        part.tensor: any_values(part.rule.shape, seed, dtype) for seed, part in enumerate(parts)
    }


def on_devices(arrays: Arrays) -> Arrays:
    return {name: jax.device_put(each, jax.devices()[0]) for name, each in arrays.items()}


def check_same(ours: Made, theirs: Made, live: Any) -> None:
    assert same_bits(ours.leaf, theirs.leaf)
    assert signature(ours.leaf) == signature(live)
    assert ours.one.sums == theirs.one.sums
    assert ours.one.rms == pytest.approx(theirs.one.rms, rel=1e-3)
    if ours.change is not None:  # else the loader finds out
        assert ours.change == pytest.approx(change_of(theirs.leaf, live), rel=1e-3)


@pytest.mark.parametrize("how", RULES)
def test_each_leaf_is_what_is_made_of_a_file_of_the_same_bytes(
    how: str, place: Any, kind: Any
) -> None:
    parts, arrays = RULES[how], arrays_for(RULES[how])
    live = live_for(parts, place)
    ours = made_by(kind, parts, live, on_devices(arrays))
    check_same(ours, made_by(Reader, parts, live, arrays), live)


def test_an_expert_that_is_left_out_stays_as_it_is_live(place: Any, kind: Any) -> None:
    parts = RULES["of experts"]
    arrays = {"2": arrays_for(parts)["2"]}
    live = live_for(parts, place)
    ours = made_by(kind, parts, live, on_devices(arrays), is_part=True)
    check_same(ours, made_by(Reader, parts, live, arrays, is_part=True), live)
    assert np.array_equal(np.asarray(ours.leaf)[0], np.asarray(live)[0])


ARRANGED = {
    "turned and joined": (RULES["padded, repeated and turned"], "d n h -> (n h) d", (4, 2, 3)),
    "of an expert": (RULES["of experts"], "i o -> o i", (6, 4)),
    "parted": (RULES["turned"], "d (h 2) -> (2 h) d", (4, 6)),
}


def each_arranged(arrays: Arrays, spelt: str, factor: float = 1.0) -> Arrays:
    return {
        name: one
        for held, array in arrays.items()
        for name, one in arrange(array, spelt, held, factor)
    }


@pytest.mark.parametrize("how", ARRANGED)
def test_arrays_that_have_their_axes_otherwise_are_arranged_there(
    how: str, place: Any, kind: Any
) -> None:
    parts, spelt, shape = ARRANGED[how]
    live = live_for(parts, place)
    arrays = {part.tensor: any_values(shape, seed) for seed, part in enumerate(parts)}
    ours, theirs = (
        made_by(maker, parts, live, each_arranged(held, spelt))
        for maker, held in ((kind, on_devices(arrays)), (Reader, arrays))
    )
    check_same(ours, theirs, live)


@pytest.mark.parametrize("dtypes", [(np.float32, BF16), (np.float32, np.float32), (BF16, BF16)])
def test_what_is_multiplied_is_rounded_as_the_host_rounds_it(dtypes: tuple[Any, Any]) -> None:
    given, served = dtypes
    parts = RULES["turned"]
    live = live_for(parts, one_device(), served)
    arrays = {"a": any_values((4, 6), 3, given)}
    arrays["a"].reshape(-1)[:4] = [1e-40, -1e-40, 1.2e-38, 0.0]
    ours, theirs = (
        made_by(kind, parts, live, each_arranged(held, "i o -> o i", 128**0.5))
        for kind, held in ((Copier, on_devices(arrays)), (Reader, arrays))
    )
    check_same(ours, theirs, live)


def test_each_tensor_of_a_stack_is_taken_out_by_one_program(place: Any) -> None:
    parts = RULES["of experts"]
    live = live_for(parts, place)
    stack, programs = any_values((6, len(parts), 4), 5), _part._cache_size  # type: ignore[attr-defined]
    before = programs()
    ours, theirs = (
        made_by(kind, parts, live, each_arranged({"{expert}": held}, "i expert o -> o i"))
        for kind, held in ((Copier, jax.device_put(stack, jax.devices()[0])), (Reader, stack))
    )
    check_same(ours, theirs, live)
    assert programs() <= before + 1


@pytest.mark.parametrize("dtypes", [(np.float32, BF16), (np.float32, np.float32)])
def test_float32s_are_rounded_as_the_host_rounds_them(dtypes: tuple[Any, Any], kind: Any) -> None:
    given, served = dtypes
    parts = RULES["turned"]
    arrays, live = arrays_for(parts, given), live_for(parts, one_device(), served)
    ours = made_by(kind, parts, live, on_devices(arrays))
    check_same(ours, made_by(Reader, parts, live, arrays), live)


def test_every_float32_has_the_bfloat16_that_the_host_gives_it() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        floats = (upper | np.uint32(lower)).view(np.float32)
        with np.errstate(invalid="ignore"):
            wanted = floats.astype(BF16).view(np.uint16)
        assert np.array_equal(np.asarray(jax.jit(round_bits)(floats)), wanted)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_may_be_no_numbers_are_left_to_a_look_at_each(value: str, kind: Any) -> None:
    parts = RULES["turned"]
    arrays = {"a": np.ones((6, 4), BF16)}
    arrays["a"][5, 3] = float(value)
    with pytest.raises(InDoubt):
        made_by(kind, parts, live_for(parts, one_device()), on_devices(arrays))


def test_a_set_without_values_is_left_to_a_look_at_each(kind: Any) -> None:
    parts = RULES["turned"]
    arrays = on_devices({"a": np.zeros((6, 4), BF16)})
    one = made_by(kind, parts, live_for(parts, one_device()), arrays).one
    with pytest.raises(InDoubt):
        check_not_empty(checked(arrays, is_unread=True), join_measures({"leaf": one}))
    check_not_empty(checked(arrays, is_unread=True, is_part=True), join_measures({"leaf": one}))


@pytest.mark.parametrize("how", ["as it is", "turned"])
def test_nothing_of_a_leaf_is_the_memory_of_the_array_it_was_made_of(how: str, kind: Any) -> None:
    parts = RULES[how]
    values = any_values(parts[0].rule.shape, 0)
    array = jax.device_put(values, one_device())
    made = made_by(kind, parts, live_for(parts, one_device()), {"a": array})
    assert made.leaf.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    jax.jit(lambda given: given * 0, donate_argnums=0)(array)
    assert np.array_equal(np.asarray(made.leaf), parts[0].rule.apply(values))


def test_an_array_that_was_deleted_meanwhile_is_named(kind: Any) -> None:
    parts = RULES["turned"]
    live, arrays = live_for(parts, one_device()), on_devices(arrays_for(parts))
    reader = kind(checked(arrays, is_unread=True), threading.Event(), lambda size: None)
    arrays["a"].delete()
    with pytest.raises(CheckpointChanged, match=r"a cannot be read: .*(was|been) deleted"):
        reader.make_leaves([(parts, live)])


def test_leaves_are_made_together_until_they_are_many_or_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotreload.engine.weights.leaf.from_arrays.BYTES_AT_ONCE", 30)
    monkeypatch.setattr("hotreload.engine.weights.leaf.from_arrays.LEAVES_AT_ONCE", 3)
    leaves = [jnp.zeros(size, jnp.uint8) for size in (40, 10, 10, 10, 10, 25)]
    assert list(groups(range(6), leaves)) == [[0], [1, 2, 3], [4], [5]]
    assert list(groups([], leaves)) == []
