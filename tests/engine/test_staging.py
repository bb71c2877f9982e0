"""What a stage runs into: no memory, weights that drifted, another dtype; and what is then left."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file
from xxhash import xxh3_128_hexdigest

from hotreload.engine.weights.load import upstream_loader
from hotreload.engine.weights.memory import headroom
from hotreload.errors import CheckpointIncompatible, CheckpointRejected, NotEnoughMemory
from hotreload.types import Checkpoint
from tests.engine import real
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any

FACTOR = 50.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> real.Folders:
    return real.Folders(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folders: real.Folders) -> AsyncIterator[Engine]:
    spool = folders.root / "spool"
    async with real.engine_of(folders.folder(1), spool, max_drift=FACTOR) as engine:
        await real.ask(engine)
        yield engine


async def idle(engine: Engine) -> None:
    """Return when no step is under way any more, which would hold arrays of its own."""
    await engine.switch.between.run(lambda: None)


def out_of_host_memory(*args: object, **more: object) -> Any:
    raise MemoryError


def out_of_device_memory(*args: object, **more: object) -> Any:
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")


OWN = ("own.fresh", "own._place", "loaders.change_of")
UPSTREAM = ("upstream_loader.load_shadow", "upstream_loader.like", "loaders.measure")


def for_upstream(checkpoint: Checkpoint) -> Checkpoint:
    """The same as our own loader does not understand it: nobody knows where its tensors lie."""
    as_one = tuple(
        replace(each, digest=xxh3_128_hexdigest((checkpoint.path / each.name).read_bytes()))
        for each in checkpoint.files
    )
    return replace(checkpoint, held={}, files=as_one)


@pytest.mark.parametrize("step", OWN + UPSTREAM)
@pytest.mark.parametrize("fault", [out_of_host_memory, out_of_device_memory])
async def test_out_of_memory_is_no_fault_of_the_checkpoint_and_nothing_is_left(
    engine: Engine,
    folders: real.Folders,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    fault: Callable[..., Any],
) -> None:
    checkpoint, said = folders.checkpoint(2), real.said(await real.ask(engine))
    checkpoint = for_upstream(checkpoint) if step in UPSTREAM else checkpoint
    await idle(engine)
    before = await real.device_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(f"hotreload.engine.weights.load.{step}", fault)
        with pytest.raises(NotEnoughMemory, match="no room for a second set of weights"):
            await engine.weights.stage(checkpoint)
    async with asyncio.timeout(PATIENCE):
        while await real.device_bytes() != before:  # noqa: ASYNC110 (the thread has yet to end)
            await asyncio.sleep(0)
    assert real.said(await real.ask(engine)) == said
    await engine.weights.release(await engine.weights.stage(checkpoint))


async def test_a_loader_that_fails_otherwise_refuses_the_checkpoint(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise KeyError("model.layers.7")

    monkeypatch.setattr(upstream_loader, "load_shadow", fail)
    with pytest.raises(CheckpointIncompatible, match=r"loader fails on it: KeyError.*layers\.7"):
        await engine.weights.stage(for_upstream(folders.checkpoint(2)))


async def test_a_device_without_room_is_named_before_anything_is_read(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        platform = "tpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 16 * 10**9, "bytes_in_use": 15 * 10**9}

        def __str__(self) -> str:
            return "TPU_7"

    monkeypatch.setattr(headroom, "shares_of", lambda arrays: {Full(): 2 * 10**9})
    said = r"TPU_7 has 1\.00 GB free.*needs 2\.00 GB: 1000000000 bytes are missing.*'host'"
    with pytest.raises(NotEnoughMemory, match=said):
        await engine.weights.stage(folders.checkpoint(2))


async def test_each_device_needs_its_share_of_every_leaf(engine: Engine) -> None:
    leaves = staging_layout(engine)
    (need,) = headroom.shares_of(leaves.values()).values()
    assert need == headroom.size_of(leaves) == engine.weights.live.bytes


def staging_layout(engine: Engine) -> dict[str, jax.Array]:
    named: dict[str, jax.Array] = engine.weights.live_leaves()
    return named


async def test_weights_that_drifted_too_far_are_refused_by_leaf(
    engine: Engine, folders: real.Folders
) -> None:
    folder = folders.folder(3)
    scale(folder / "model.safetensors", "model.norm.weight", 2 * FACTOR)
    with pytest.raises(CheckpointRejected, match=r"norm.*more than a factor of 50") as refusal:
        await engine.weights.stage(real.checked(folder))
    assert refusal.value.code == "drift"


def scale(file: Path, name: str, factor: float) -> None:
    tensors = load_file(file)
    tensors[name] = (tensors[name].astype(np.float32) * factor).astype(tensors[name].dtype)
    save_file(tensors, file)


async def test_a_checkpoint_in_another_dtype_is_cast_and_recompiles_nothing(
    engine: Engine, folders: real.Folders
) -> None:
    staged, structure = (
        await engine.weights.stage(folders.checkpoint(4, "wrong-dtype")),
        engine.weights.structure(),
    )
    await real.ask(engine)
    before = engine.recompiles
    old = await engine.switch.exchange(staged)
    assert (await real.ask(engine))["text"] == "served by step 4"
    assert engine.weights.structure() == structure
    assert engine.recompiles == before
    await engine.weights.release(await engine.switch.exchange(old))
