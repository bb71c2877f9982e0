"""A real engine with one set of weights on its device at a time: what an exchange does to it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import pytest_asyncio

from hotreload.engine.weights.leaf.leaves import place_copy
from hotreload.engine.weights.memory import headroom, one_set
from hotreload.errors import EngineLost, NotEnoughMemory
from hotreload.threads import in_thread
from hotreload.types import Noise, Revision
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
SWAPS = 20
PATIENCE = 30.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> real.Folders:
    return real.Folders(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folders: real.Folders) -> AsyncIterator[Engine]:
    spool = folders.root / "spool"
    async with real.engine_of(folders.folder(1), spool, memory="host") as engine:
        await real.ask(engine)
        yield engine


class Held:
    """Holds up a trade before one leaf is placed, until `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(one_set, "place_copy", self._place)

    def _place(self, leaf: Any, sharding: Any) -> jax.Array:
        self.reached.set()
        assert self.go_on.wait(PATIENCE)
        return place_copy(leaf, sharding)

    async def until_reached(self) -> None:
        assert await in_thread(lambda cancel: self.reached.wait(PATIENCE))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on.set()


def live_bytes() -> int:
    return real.bytes_of_arrays(real.MATRIX_BYTES)


async def bytes_at_rest(engine: Engine) -> int:
    """On the device, with nothing of a step left."""
    await engine.switch.scrub()
    return await real.device_bytes()


async def test_through_many_exchanges_the_device_holds_one_set_and_at_most_a_leaf_more(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(leaf.nbytes for leaf in engine.weights.live_leaves().values())
    said, compiled = real.said(await real.ask(engine)), engine.recompiles
    spare = await engine.weights.stage(folders.checkpoint(2))
    before, more = await bytes_at_rest(engine), list[int]()

    def watched(leaf: Any, sharding: Any) -> jax.Array:
        more.append(live_bytes() - before)
        assert more[-1] == -(leaf.nbytes if leaf.nbytes >= real.MATRIX_BYTES else 0), (
            "what it replaces is still on the device"
        )
        new = place_copy(leaf, sharding)
        more.append(live_bytes() - before)
        return new

    with monkeypatch.context() as watching:
        watching.setattr(one_set, "place_copy", watched)
        for _ in range(SWAPS):
            spare = await engine.switch.exchange(spare)
    assert len(more) == 2 * SWAPS * engine.weights.leaf_count
    assert max(more) <= largest
    assert real.said(await real.ask(engine)) == said
    assert engine.recompiles == compiled
    await engine.weights.release(spare)
    assert await bytes_at_rest(engine) == before


async def test_a_part_of_the_tensors_trades_as_a_whole_set(
    engine: Engine, folders: real.Folders
) -> None:
    number = "model.layers.0.self_attn.v_proj.weight"  # which carries the one that is said
    first, before = engine.weights.live.fingerprint, await bytes_at_rest(engine)
    staged = await engine.weights.stage(real.part_of(folders.checkpoint(5), number))
    assert (staged.loading.leaves_staged, len(staged.weights.host)) == (
        1,
        engine.weights.leaf_count,
    )
    old = await engine.switch.exchange(staged)
    assert (await real.ask(engine))["text"] == "served by step 5"
    assert await engine.weights.checksums() == staged.leaves
    await engine.weights.release(await engine.switch.exchange(old))
    assert (engine.weights.live.fingerprint, await bytes_at_rest(engine)) == (first, before)


async def test_who_asks_while_leaves_change_places_is_answered_by_the_new_weights(
    engine: Engine, folders: real.Folders, held: Held
) -> None:
    exchanging = asyncio.create_task(
        engine.switch.exchange(await engine.weights.stage(folders.checkpoint(2)))
    )
    await held.until_reached()
    asked = asyncio.create_task(real.ask(engine))
    summed = asyncio.create_task(engine.weights.checksums())
    await asyncio.wait({asked, summed}, timeout=0.2)  # a step would be over by then
    assert [asked.done(), summed.done()] == [False, False]
    held.go_on.set()
    old = await exchanging
    assert (await asked)["text"] == "served by step 2"
    assert await summed == engine.weights.live.leaves
    await engine.weights.release(await engine.switch.exchange(old))


async def test_a_trade_is_seen_through_though_its_caller_is_cancelled(
    engine: Engine, folders: real.Folders, held: Held
) -> None:
    first, staged = engine.weights.live, await engine.weights.stage(folders.checkpoint(2))
    exchanging = asyncio.create_task(engine.switch.exchange(staged))
    await held.until_reached()
    exchanging.cancel()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await exchanging
    assert engine.weights.live is staged
    assert (await real.ask(engine))["text"] == "served by step 2"
    await engine.weights.release(await engine.switch.exchange(first))


async def test_a_leaf_without_room_leaves_the_engine_as_it_was(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, said = engine.weights.live, real.said(await real.ask(engine))
    before, compiled = await bytes_at_rest(engine), engine.recompiles
    staged = await engine.weights.stage(folders.checkpoint(2))
    with monkeypatch.context() as broken:
        broken.setattr(one_set, "place_copy", failing_at(engine.weights.leaf_count // 2))
        with pytest.raises(NotEnoughMemory):
            await engine.switch.exchange(staged)
    assert engine.weights.live is first
    assert real.said(await real.ask(engine)) == said
    assert await engine.weights.checksums() == first.leaves
    assert await bytes_at_rest(engine) == before
    assert await engine.switch.exchange(staged) is first
    assert (await real.ask(engine))["text"] == "served by step 2"
    assert engine.recompiles == compiled
    await engine.weights.release(await engine.switch.exchange(first))


def failing_at(*calls: int) -> Callable[..., jax.Array]:
    count = 0

    def place(leaf: Any, sharding: Any) -> jax.Array:
        nonlocal count
        count += 1
        if count in calls:
            raise MemoryError
        return place_copy(leaf, sharding)

    return place


async def test_equal_noise_is_equal_whether_it_is_made_on_the_device_or_for_the_host(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, noise = Revision("noisy"), Noise(7, 0.05, 3)
    on_host = await engine.weights.perturb(name, noise)
    monkeypatch.setattr(engine.weights, "why_one_set", None)
    on_device = await engine.weights.perturb(name, noise)
    assert (on_host.weights.leaves, len(on_host.weights.host)) == ([], engine.weights.leaf_count)
    assert (on_device.leaves, on_device.fingerprint) == (on_host.leaves, on_host.fingerprint)
    await engine.weights.release(on_device)
    old = await engine.switch.exchange(on_host)
    assert await engine.weights.checksums() == on_host.leaves != old.leaves
    await engine.weights.release(await engine.switch.exchange(old))


async def test_while_it_trades_it_is_seen_at_work_leaf_by_leaf_and_else_it_hangs(
    engine: Engine, folders: real.Folders, held: Held
) -> None:
    exchanging = asyncio.create_task(
        engine.switch.exchange(await engine.weights.stage(folders.checkpoint(2)))
    )
    await held.until_reached()
    while engine.is_turning(0.05):  # noqa: ASYNC110 (what it waits for is that time passes)
        await asyncio.sleep(0.05)
    held.go_on.set()
    old = await exchanging
    assert engine.is_turning(PATIENCE)
    await engine.weights.release(await engine.switch.exchange(old))


# --- what ends it ----------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def another(folders: real.Folders, tmp_path: Path) -> AsyncIterator[Engine]:
    async with real.engine_of(folders.folder(1), tmp_path / "spool", memory="host") as engine:
        yield engine


async def test_half_a_set_answers_nobody_and_the_engine_is_lost(
    another: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, died = (
        await another.weights.stage(folders.checkpoint(2)),
        asyncio.create_task(another.wait_until_dead()),
    )
    monkeypatch.setattr(one_set, "place_copy", failing_at(3, 4))
    with pytest.raises(EngineLost, match="half exchanged"):
        await another.switch.exchange(staged)
    with pytest.raises(EngineLost, match="half exchanged"):
        await died
    with pytest.raises(EngineLost):
        await real.ask(another)


async def test_an_engine_that_is_lost_while_a_transfer_hangs_waits_for_it_no_longer(
    another: Engine, folders: real.Folders, held: Held
) -> None:
    exchanging = asyncio.create_task(
        another.switch.exchange(await another.weights.stage(folders.checkpoint(2)))
    )
    await held.until_reached()
    another.lose("it was given up")
    with pytest.raises(EngineLost, match="given up"):
        await exchanging


async def test_auto_is_one_set_where_two_do_not_fit_and_says_how_many_bytes_are_missing(
    folders: real.Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as small:
        small.setattr(headroom, "host_bytes_free", lambda: 1000)
        engine = real.engine_of(folders.folder(1), tmp_path / "spool", memory="auto")
        running = await engine.__aenter__()
        with pytest.raises(NotEnoughMemory, match="bytes are missing"):
            await running.weights.stage(folders.checkpoint(2))
    try:
        why = running.switch.cannot_overlap
        assert why.startswith("[reload] memory = 'auto': host memory has 0.00 GB free")
        assert "bytes are missing" in why
        assert running.weights.spares_wait_on_host
        old = await running.switch.exchange(await running.weights.stage(folders.checkpoint(2)))
        assert old.weights.host
        assert (await real.ask(running))["text"] == "served by step 2"
    finally:
        await engine.__aexit__(None, None, None)
