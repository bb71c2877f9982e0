"""On an accelerator bytes of files go to the device from a ring of page-locked buffers.

A CPU has such memory, too, but is no accelerator: here the way that one takes is asked for.
"""

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.checkpoint import first_read
from hotreload.engine.weights.leaf import on_device
from hotreload.engine.weights.leaf.differences import change_of
from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.on_device import can_turn
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Made, Reader, Recipe
from hotreload.engine.weights.memory import headroom, page_locked
from hotreload.engine.weights.memory.page_locked import KIND, Buffer, LockedBuffers
from hotreload.errors import CheckpointChanged, TryAgain
from hotreload.quiet import Quiet, do_quietly
from hotreload.types import Checkpoint
from tests.engine import real
from tests.engine.test_own_loader import unread

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402

BF16 = ml_dtypes.bfloat16
SIZE = 256
"""Bytes of a buffer: the tensors here take up to nine."""
RULES = (Rule((7, 99), axes=(1, 0)), Rule((16, 72)))
"""Of bfloat16 the first ends within a buffer, and within a word; the second ends with one."""
WEIGHTS = "model.safetensors"
OUR_OWN = pytest.mark.alike
"""What another version of JAX does otherwise shows in the first test and in those on memory."""


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(own, "pays_on_device", can_turn)
    monkeypatch.setattr(page_locked, "SENT_AT_ONCE", SIZE)
    page_locked._without.cache_clear()
    yield
    page_locked._without.cache_clear()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Buffer]:
    """The buffer of each transfer."""
    sent, send = list[Buffer](), Buffer.send

    def noted(buffer: Buffer) -> jax.Array:
        sent.append(buffer)
        return send(buffer)

    monkeypatch.setattr(Buffer, "send", noted)
    return sent


def files_of(root: Path, stored: Any = BF16) -> Checkpoint:
    chance = np.random.default_rng(0)
    tensors = {
        str(at): chance.normal(size=rule.shape).astype(stored) for at, rule in enumerate(RULES)
    }
    save_file(tensors, root / WEIGHTS)
    return real.checked(root)


def recipes() -> list[Recipe]:
    to = jax.devices()[1]
    lives = (jax.device_put(np.zeros(rule.leaf_shape, BF16), to) for rule in RULES)
    parts = ((Ingredient(str(at), rule),) for at, rule in enumerate(RULES))
    return list(zip(parts, lives, strict=True))


def reader_of(checkpoint: Checkpoint) -> Reader:
    return Reader(checkpoint, threading.Event(), lambda size: None)


def made_by(checkpoint: Checkpoint, of: list[Recipe]) -> list[Made]:
    with closing(reader_of(checkpoint)) as reader:
        return [reader.make_leaves([each])[0] for each in of]


def made_on_host(checkpoint: Checkpoint, of: list[Recipe]) -> list[Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "pays_on_device", lambda *_: False)
        return made_by(checkpoint, of)


def same(ours: list[Made], expected: list[Made]) -> bool:
    return all(
        np.asarray(one.leaf).tobytes() == np.asarray(other.leaf).tobytes()
        and one.leaf.sharding == other.leaf.sharding
        and one.one.sums == other.one.sums
        for one, other in zip(ours, expected, strict=True)
    )


# --- what arrives -----------------------------------------------------------------------------


@pytest.mark.parametrize(("stored", "count"), [(BF16, len(RULES)), (np.float32, 1)])
def test_leaves_that_came_by_the_ring_are_those_that_the_host_makes(
    tmp_path: Path, stored: Any, count: int, sent: list[Buffer]
) -> None:
    checkpoint, of = files_of(tmp_path, stored), recipes()[:count]
    expected = made_on_host(checkpoint, of)
    assert sent == []
    with closing(reader_of(checkpoint)) as reader:
        ours = [reader.make_leaves([each])[0] for each in of]
        assert len(reader._scratch) == 0, "no tensor lay in other memory"
    assert same(ours, expected)
    held = (checkpoint.held[part.tensor] for (part,), _ in of)
    sizes = (each.end - each.begin for each in held)
    assert len(sent) == page_locked.BUFFERS + sum(-(-size // SIZE) for size in sizes)
    assert len({*map(id, sent)}) == page_locked.BUFFERS


@OUR_OWN
def test_the_first_reading_goes_by_the_ring_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[Buffer]
) -> None:
    """Both what is read now, and bytes of the beginning that were kept."""
    checkpoint, of = files_of(tmp_path), recipes()
    expected = made_on_host(checkpoint, of)
    size = checkpoint.held["0"].end - checkpoint.held["0"].begin
    monkeypatch.setattr(first_read, "FIRST_BYTES", size)
    assert same(made_by(unread(tmp_path), of), expected)
    assert len(sent) == page_locked.BUFFERS + 6 + 9


@OUR_OWN
def test_the_distance_from_the_live_leaf_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, of = files_of(tmp_path), recipes()
    (leaf,) = (each.leaf for each in made_by(checkpoint, of[1:]))
    live = leaf * jax.numpy.asarray(1.5, BF16)
    monkeypatch.setattr(on_device, "is_on_host", lambda leaf: False)
    (made,) = made_by(checkpoint, [(of[1][0], live)])
    assert made.change == pytest.approx(change_of(leaf, live), rel=1e-5)


@OUR_OWN
def test_experts_are_stacked_from_the_ring(tmp_path: Path, sent: list[Buffer]) -> None:
    chance = np.random.default_rng(0)
    experts = {f"e{at}": chance.normal(size=(7, 99)).astype(BF16) for at in range(4)}
    save_file(experts, tmp_path / WEIGHTS)
    parts = tuple(Ingredient(e, Rule((7, 99), axes=(1, 0)), at) for at, e in enumerate(experts))
    live = jax.device_put(np.zeros((4, 99, 7), BF16), jax.devices()[1])
    (made,) = made_by(real.checked(tmp_path), [(parts, live)])
    assert np.array_equal(made.leaf, np.stack([each.T for each in experts.values()]))
    assert len(sent) == page_locked.BUFFERS + 4 * 6


def test_two_readers_have_rings_of_their_own(tmp_path: Path, sent: list[Buffer]) -> None:
    checkpoint, of = files_of(tmp_path), recipes() * 3
    expected = made_on_host(checkpoint, of)

    @contextmanager
    def worker() -> Iterator[Callable[[int], tuple[int, Made]]]:
        with closing(reader_of(checkpoint)) as reader:
            barrier.wait(30)
            yield lambda at: (at, reader.make_leaves([of[at]])[0])

    barrier = threading.Barrier(2)
    made = dict(do_quietly(range(len(of)), worker, Quiet(threads=2, priority="normal")))
    assert same([made[at] for at in range(len(of))], expected)
    assert len({*map(id, sent)}) <= 2 * page_locked.BUFFERS


def test_a_leaf_of_several_devices_comes_without() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("tensor",))
    spec = jax.sharding.PartitionSpec("tensor")  # type: ignore[no-untyped-call]
    live = jax.device_put(np.zeros((16, 8), BF16), jax.sharding.NamedSharding(mesh, spec))
    assert page_locked.ring_for(live, 2) is None


# --- no byte of another moment ----------------------------------------------------------------


class Late:
    """A transfer that reads the memory only when it is waited for."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.read: Any = None

    def block_until_ready(self) -> "Late":
        self.read = self._buffer.memory.copy() if self.read is None else self.read
        return self


@pytest.fixture
def late_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(buffer: Any) -> Late:
        buffer._under_way = late = Late(buffer)
        return late

    def take(ring: Any) -> Any:
        rows = np.stack([each.block_until_ready().read for each in ring._arrived])
        return jax.device_put(rows.view(np.uint16), jax.devices()[1])

    monkeypatch.setattr(Buffer, "send", send)
    monkeypatch.setattr(LockedBuffers, "check", lambda ring: None)
    monkeypatch.setattr(LockedBuffers, "take", take)
    monkeypatch.setattr(page_locked, "_begin", lambda row, count: [row])
    monkeypatch.setattr(page_locked, "_put_in", lambda rows, row, at: [*rows, row])


def test_a_buffer_is_not_written_again_before_it_has_arrived(
    tmp_path: Path, late_transfers: None
) -> None:
    checkpoint, of = files_of(tmp_path), recipes()
    assert same(made_by(checkpoint, of), made_on_host(checkpoint, of))


def test_one_that_is_written_too_soon_is_found(
    tmp_path: Path, late_transfers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, of = files_of(tmp_path), recipes()
    monkeypatch.setattr(Buffer, "wait", lambda buffer: None)
    with pytest.raises(TryAgain, match="arrived on its device with other bytes") as found:
        made_by(checkpoint, of)
    assert found.value.code == "copy_differs"


@OUR_OWN
@pytest.mark.parametrize("by_ring", [True, False])
def test_a_transfer_that_damages_a_byte_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_ring: bool
) -> None:
    put = jax.device_put
    checkpoint, of = files_of(tmp_path), recipes()
    if not by_ring:
        monkeypatch.setattr(own, "ring_for", lambda *_: None)

    def damaged(array: Any, *where: Any) -> Any:
        made = put(array, *where)
        if isinstance(made, list) or made.size < 2:
            return made
        return made.at[(0,) * made.ndim].multiply(2)

    with closing(reader_of(checkpoint)) as reader:
        reader.make_leaves([of[0]])
        monkeypatch.setattr(jax, "device_put", damaged)
        with pytest.raises(TryAgain, match="arrived on its device with other bytes"):
            reader.make_leaves([of[0]])


def test_a_file_that_changes_under_the_ring_is_refused(tmp_path: Path) -> None:
    checkpoint, of = files_of(tmp_path), recipes()
    file = tmp_path / WEIGHTS
    whole = file.read_bytes()
    file.write_bytes(whole[:-40] + bytes(40))
    with pytest.raises(CheckpointChanged, match="are different now"):
        made_by(checkpoint, of)
    file.write_bytes(whole[:-40])
    with pytest.raises(CheckpointChanged, match="shorter"):
        made_by(checkpoint, of)


# --- whose memory it is -----------------------------------------------------------------------


def locked_memory() -> int:
    """How many arrays lie in page-locked memory; JAX lists some twice."""
    arrays: list[Any] = jax.live_arrays()  # type: ignore[no-untyped-call]
    locked = (each for each in arrays if each.sharding.memory_kind == KIND)
    return len({each.unsafe_buffer_pointer() for each in locked})


@pytest.mark.parametrize("fails", [False, True])
def test_the_buffers_are_few_and_are_given_back(tmp_path: Path, fails: bool) -> None:
    checkpoint, of = files_of(tmp_path), recipes()
    gc.collect()
    before, seen = locked_memory(), list[int]()
    with closing(reader_of(checkpoint)) as reader:
        for each in of:
            if fails and seen:
                (tmp_path / WEIGHTS).write_bytes(bytes(8))
                with pytest.raises(CheckpointChanged):
                    reader.make_leaves([of[-1]])
                break
            reader.make_leaves([each])
            seen.append(locked_memory() - before)
    assert {*seen} == {page_locked.BUFFERS}
    gc.collect()
    assert locked_memory() == before


def test_the_memory_of_the_rings_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (recipe[1] for recipe in recipes())
    there = jax.device_put(there, jax.devices()[0])
    anywhere = jax.numpy.zeros(3)
    assert page_locked.memory_for_rings([here], {2}, 3) == ([], 0), "no accelerator needs one"
    monkeypatch.setattr(page_locked, "is_on_host", lambda leaf: False)
    for leaves, devices in (([], 0), ([anywhere], 0), ([here], 1), ([here, there, here], 2)):
        for sizes in (set[int](), {2}, {2, 4}):
            described, on_host = page_locked.memory_for_rings(leaves, sizes, readers=3)
            assert on_host == devices * len(sizes) * 3 * page_locked.BUFFERS * SIZE
            shares = headroom.shares_of(described).values()
            most = 3 * (page_locked.BUFFERS + 1) * SIZE
            assert [*shares] == [len(sizes) * most] * (devices if sizes else 0)


# --- where there is none ----------------------------------------------------------------------


class Elsewhere:
    """An address at which this process has no memory."""

    def __init__(self, array: jax.Array) -> None:
        place = (8, False)
        shape = (array.nbytes,)
        self.__array_interface__ = {"data": place, "shape": shape, "typestr": "|u1", "version": 3}


def none_left(*_: Any) -> None:
    raise RuntimeError("RESOURCE_EXHAUSTED: no page can be locked")


NO_RING = {
    "no_such_kind": (page_locked, "KIND", "no_such_kind"),
    "RESOURCE_EXHAUSTED": (Buffer, "__init__", none_left),
    "Bad address": (page_locked, "_Writable", Elsewhere),
    "arrive as others": (Buffer, "send", lambda buffer: np.zeros(SIZE, np.uint8)),
}


@pytest.mark.parametrize("why", NO_RING)
def test_without_such_memory_the_usual_way_is_taken_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    checkpoint, of = files_of(tmp_path), recipes()[:1]
    expected = made_on_host(checkpoint, of)
    monkeypatch.setattr(*NO_RING[why])
    with caplog.at_level(logging.INFO, "hotreload.engine"):
        for _ in range(2):
            assert same(made_by(checkpoint, of), expected)
    (line,) = (each for each in caplog.records if each.msg == "staging.not_page_locked")
    assert why in line.__dict__["why"]
