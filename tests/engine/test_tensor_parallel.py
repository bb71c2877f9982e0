"""One, two and four devices share the weights: whatever is promised holds on any number of them.

The model has one head of keys and values, of which each device has a copy.
"""

import ctypes
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from hotreload.checkpoint.check import findings
from hotreload.checkpoint.fit import Policy
from hotreload.engine.weights.leaf import differences, measures
from hotreload.engine.weights.leaf.differences import leaves_whose_copies_differ
from hotreload.engine.weights.leaf.leaves import place_copy
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.engine.weights.memory import headroom, one_set
from hotreload.errors import ConfigError, NotEnoughMemory, ProbeFailed
from hotreload.types import Checkpoint, Noise, Revision, Staged
from tests.engine import real
from tests.engine.lanes.crowd import Crowd, Voices, check_memory, end, replace, tell
from tests.engine.wide import WEIGHTS, rewritten, widened

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

import jax  # noqa: E402

Engine = Any
FLIPS = 4
NORM, MATRIX = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"


class Wide(Voices):
    """Checkpoints whose heads four devices can share."""

    def folder(self, number: int, damage: str | None = None) -> Path:
        return widened(super().folder(number, damage))

    def changed(self, number: int, *names: str) -> Checkpoint:
        """One that says the same, in which only these tensors are others."""
        return real.checked(rewritten(self.folder(number), factor=1.0625, names=names))

    def overflowing(self, number: int) -> Checkpoint:
        """One of finite numbers with which no answer can be computed."""
        file = self.folder(number) / WEIGHTS
        tensors = load_file(file)
        tensors["model.layers.0.self_attn.v_proj.weight"][:] = 3e38
        tensors["model.embed_tokens.weight"][:] = 16
        save_file(tensors, file)
        return real.checked(file.parent)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    return Wide(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def agreed() -> Callable[[str, object], bool]:
    """Whether what one number of devices told is what another told before."""
    told: dict[str, object] = {}
    return lambda name, value: told.setdefault(name, value) == value


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        pytest.param(1, marks=pytest.mark.at_night),
        2,
        pytest.param(4, marks=pytest.mark.at_night),
    ],
    ids=lambda tp: f"tp={tp}",
)
async def engine(request: pytest.FixtureRequest, voices: Wide) -> AsyncIterator[Engine]:
    spool = voices.root / "spool"
    async with real.engine_of(voices.folder(1), spool, tp=request.param) as engine:
        assert engine.switch.cannot_overlap is None
        assert len({d for leaf in live(engine) for d in leaf.devices()}) == request.param
        yield engine


def live(engine: Engine) -> list[jax.Array]:
    return list(engine.weights.live_leaves().values())


def bits(engine: Engine, staged: Staged) -> dict[tuple[str, int], bytes]:
    """What each device holds of each leaf."""
    named: dict[str, jax.Array] = engine.weights.layout.by_path(staged.weights.leaves)
    return {
        (path, shard.device.id): np.asarray(shard.data).tobytes()
        for path, leaf in named.items()
        for shard in leaf.addressable_shards
    }


def of_files(folder: Path) -> str | None:
    return findings(folder, None, Policy(), compute_in="auto").fingerprint


async def back_to(engine: Engine, first: Staged) -> None:
    """Nothing else is kept."""
    await engine.weights.release(await engine.switch.exchange(first))
    assert (await tell(engine, 20)).is_whole


# --- the same weights -------------------------------------------------------------------------


async def test_the_fingerprint_is_that_of_the_files_on_any_number_of_devices(
    engine: Engine, voices: Wide
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(2))
    assert engine.weights.live.fingerprint == of_files(voices.folder(1))
    assert staged.fingerprint == of_files(voices.folder(2)) != engine.weights.live.fingerprint
    assert await engine.weights.checksums() == engine.weights.live.leaves
    await engine.weights.release(staged)


async def test_both_loaders_give_each_device_the_same_bits(
    engine: Engine, voices: Wide, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await engine.weights.stage(voices.checkpoint(2))
    monkeypatch.setattr(Loaders, "why_upstream", "the test wants it")
    theirs = await engine.weights.stage(voices.checkpoint(2))
    assert (ours.loading.loader, theirs.loading.loader) == ("own", "upstream")
    assert bits(engine, ours) == bits(engine, theirs)
    assert ours.leaves == theirs.leaves
    for staged in (ours, theirs):
        await engine.weights.release(staged)


# What is shared is ours to say; on the newer one, too, both loaders give each device the same bits.
@pytest.mark.alike
async def test_only_what_changed_is_made_and_the_rest_is_shared_on_each_device(
    engine: Engine, voices: Wide
) -> None:
    checkpoint = voices.changed(1, NORM, MATRIX)
    staged = await engine.weights.stage(checkpoint)
    was, now = engine.weights.live.weights.leaves, staged.weights.leaves
    fresh = {at for at in engine.weights.layout.places if now[at] is not was[at]}
    made = {
        p.tensor for at in fresh for p in engine.weights.plan.parts[engine.weights.layout.paths[at]]
    }
    assert made == {NORM, MATRIX}
    sizes = [checkpoint.held[name].end - checkpoint.held[name].begin for name in made]
    assert (staged.loading.leaves_staged, staged.loading.bytes_read) == (2, sum(sizes))
    assert staged.fingerprint == of_files(checkpoint.path)
    await back_to(engine, await engine.switch.exchange(staged))


@pytest.mark.alike  # we measure, with JAX alone
async def test_it_is_measured_alike_where_the_devices_are_no_part_of_the_host(
    engine: Engine, voices: Wide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator: each leaf is measured, and compared with another, where it is."""
    here = await engine.weights.stage(voices.checkpoint(2))
    for module in (measures, differences):
        monkeypatch.setattr(module, "is_on_host", lambda leaf: False)
    there = await engine.weights.stage(voices.checkpoint(2))
    assert there.loading.largest_change == pytest.approx(here.loading.largest_change)
    measured = engine.weights.loaders.measure(there.weights.leaves)
    assert measured.sums == here.weights.measured.sums
    assert measured.rms == pytest.approx(here.weights.measured.rms, rel=1e-3)
    for staged in (here, there):
        await engine.weights.release(staged)


# --- while clients ask ------------------------------------------------------------------------


# On the newer one tests/hosts/test_engine.py flips two devices by day, lanes/test_flip.py one.
@pytest.mark.alike
async def test_answers_stay_whole_through_flips_and_a_rollback(
    engine: Engine, voices: Wide
) -> None:
    crowd = Crowd(engine, clients=3, tokens=(3, 8, 24), prompts=("hello", "x" * 150))
    first = engine.weights.live
    before = bits(engine, first)
    async with crowd.asking():
        await crowd.more(4)
        second = await engine.weights.stage(voices.checkpoint(2))
        await engine.switch.flip(second)
        await crowd.more(4, by=second)
        for number in range(3, 2 + FLIPS):
            await replace(engine, voices, number, crowd)
        last = await engine.switch.flip(first)
        await crowd.more(4, by=first)
        await end(engine, last, crowd)
    assert crowd.mixed == []
    assert bits(engine, first) == before
    assert await engine.weights.checksums() == first.leaves
    await check_memory(engine)


@pytest.mark.parametrize("bad", ["nan", "overflowing"])
async def test_bad_weights_are_refused_and_answers_beside_them_keep_every_bit(
    engine: Engine, voices: Wide, bad: str
) -> None:
    checkpoint = voices.overflowing(9) if bad == "overflowing" else voices.checkpoint(9, bad)
    before, staged = bits(engine, engine.weights.live), await engine.weights.stage(checkpoint)
    async with Crowd(engine, clients=3, tokens=(8, 24)).asking() as crowd:
        await crowd.more(2)
        with pytest.raises(ProbeFailed, match="NaN or infinities"):
            await engine.unseen.prove(staged)
        await crowd.more(2)
    assert crowd.mixed == []
    assert bits(engine, engine.weights.live) == before
    await engine.weights.release(staged)
    await check_memory(engine)


# --- what waits on the host -------------------------------------------------------------------


async def test_what_was_live_comes_back_from_the_host_as_it_was_and_nothing_is_compiled_again(
    engine: Engine, voices: Wide
) -> None:
    before, placement = bits(engine, engine.weights.live), engine.weights.structure()
    assert (await tell(engine, 20)).is_whole
    compiled = engine.recompiles
    first = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(2)))
    await engine.switch.retire(first)
    assert (await tell(engine, 20)).is_whole
    kept = await engine.weights.stow(first)
    assert kept.weights.leaves == []
    back = await engine.weights.unstow(kept)
    second = await engine.switch.flip(back)
    await end(engine, second)
    assert bits(engine, back) == before
    assert engine.weights.structure() == placement
    assert (await tell(engine, 20)).is_whole
    assert engine.recompiles == compiled


@contextmanager
def memory(engine: Engine, policy: str) -> Iterator[None]:
    """As if the engine had been started with this [reload] memory."""

    def decide(policy: str) -> None:
        engine.weights._memory = policy
        engine.weights.decide(engine._shadows.pool.buffers)

    decide(policy)
    try:
        yield
    finally:
        decide("double")


async def test_with_room_for_one_set_each_device_trades_its_share_leaf_by_leaf(
    engine: Engine, voices: Wide, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bits(engine, engine.weights.live)
    assert (await tell(engine, 20)).is_whole
    compiled = engine.recompiles
    with memory(engine, "host"):
        spare = await engine.weights.stage(voices.checkpoint(2))
        assert not spare.weights.leaves
        await engine.switch.scrub()
        await real.device_bytes()
        before = on_each_device()

        def watched(leaf: Any, sharding: Any) -> jax.Array:
            new = place_copy(leaf, sharding)
            share = headroom.shares_of([new]) if new.nbytes >= real.MATRIX_BYTES else {}
            now = on_each_device()
            # What it replaces has left each device before it came.
            assert all(now[device] <= before[device] for device in share)
            return new

        with monkeypatch.context() as watching:
            watching.setattr(one_set, "place_copy", watched)
            spare = await engine.switch.exchange(spare)
        assert (await tell(engine, 20)).is_whole
        assert engine.weights.live.revision.id == "step_2"
        with monkeypatch.context() as broken:
            broken.setattr(one_set, "place_copy", failing_at(engine.weights.leaf_count // 2))
            with pytest.raises(NotEnoughMemory):
                await engine.switch.exchange(spare)
        assert await engine.weights.checksums() == engine.weights.live.leaves
        await engine.weights.release(await engine.switch.exchange(spare))
    assert bits(engine, engine.weights.live) == first
    assert (await tell(engine, 20)).is_whole
    assert engine.recompiles == compiled


def on_each_device() -> dict[Any, int]:
    """Bytes of what is there of large arrays, by device."""
    arrays: list[jax.Array] = jax.live_arrays()  # type: ignore[no-untyped-call]
    return dict(headroom.shares_of([each for each in arrays if each.nbytes >= real.MATRIX_BYTES]))


def failing_at(call: int) -> Callable[..., jax.Array]:
    calls = iter(range(1, 1000))

    def place(leaf: Any, sharding: Any) -> jax.Array:
        if next(calls) == call:
            raise MemoryError
        return place_copy(leaf, sharding)

    return place


async def test_room_is_counted_by_what_each_device_would_hold(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[Any, int] = {}
    for leaf in live(engine):
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    assert headroom.shares_of(live(engine)) == held
    pool = sum(headroom.shares_of(engine._shadows.pool.buffers).values())
    need = sum(held.values()) + pool
    for free, told in ((need, None), (need - 1, "1 bytes are missing")):
        monkeypatch.setattr(headroom, "host_bytes_free", lambda free=free: free)
        with memory(engine, "auto"):
            why = engine.switch.cannot_overlap
        assert why is None if told is None else told in why


# --- what is found, and what is put on them ---------------------------------------------------


async def test_a_bit_that_flips_on_the_last_device_is_found_in_every_leaf(
    engine: Engine, voices: Wide
) -> None:
    """In what it shares with no other, in what each has whole, and in its copy of the one head."""
    first = await engine.switch.exchange(await engine.weights.stage(voices.checkpoint(2)))
    whole = engine.weights.live.leaves
    for path, leaf in engine.weights.live_leaves().items():
        with flipped_bit(leaf.addressable_shards[-1].data):
            now = await engine.weights.checksums()
            assert [name for name in whole if now[name] != whole[name]] == [path]
    assert await engine.weights.checksums() == whole
    await back_to(engine, first)


@contextmanager
def flipped_bit(leaf: jax.Array) -> Iterator[None]:
    """As a fault of the memory does; JAX hears nothing of it."""
    last = leaf.unsafe_buffer_pointer() + leaf.nbytes - 1
    byte = ctypes.c_uint8.from_address(last)
    byte.value ^= 1
    yield
    byte.value ^= 1


async def test_noise_for_the_host_leaves_no_copy_of_what_is_live_there(
    engine: Engine, voices: Wide
) -> None:
    """JAX keeps what a leaf that is split was asked for, for as long as the leaf lives."""
    first, noise = (
        await engine.switch.exchange(await engine.weights.stage(voices.checkpoint(2))),
        Noise(7, 0.05, 1),
    )
    await engine.weights.release(await engine.weights.perturb(Revision("noisy"), noise))  # compiles
    tracemalloc.start()
    try:
        with memory(engine, "host"):
            await engine.weights.release(await engine.weights.perturb(Revision("noisy"), noise))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < engine.weights.live.bytes / 4
    await back_to(engine, first)


async def test_equal_noise_is_equal_on_any_number_of_devices_and_in_every_copy(
    engine: Engine, agreed: Callable[[str, object], bool]
) -> None:
    noise = Noise(7, 0.05, engine.weights.leaf_count)
    noisy = await engine.weights.perturb(Revision("noisy"), noise)
    named = engine.weights.layout.by_path(noisy.weights.leaves)
    assert agreed("noisy", (noisy.fingerprint, noisy.leaves))
    assert list(leaves_whose_copies_differ(named, engine.weights.plan.parts)) == []
    with memory(engine, "host"):
        waiting = await engine.weights.perturb(Revision("noisy"), noise)
    assert waiting.fingerprint == noisy.fingerprint
    await engine.weights.release(waiting)
    first = await engine.switch.exchange(noisy)
    assert await engine.weights.checksums() == noisy.leaves
    await back_to(engine, first)


async def test_where_an_engine_would_repeat_the_wrong_axis_it_is_refused_by_the_setting(
    voices: Wide, tmp_path: Path
) -> None:
    """0.1.0rc0 tells the axes of a matrix apart by their lengths; 0.0.2 serves the model."""
    folder = widened(Voices(tmp_path).folder(1), kv_heads=2)
    try:
        async with real.engine_of(folder, tmp_path / "spool", tp=4) as engine:
            told = "served" if (await tell(engine, 9)).is_whole else "served wrongly"
    except ConfigError as refused:
        told = str(refused)
    assert told == "served" or told.endswith("set tp to 2 or less")
