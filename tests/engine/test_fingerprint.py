"""The fingerprint of the files is that of what is live, on any number of devices."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from hotreload.checkpoint.check import check_checkpoint, findings
from hotreload.checkpoint.fit import Policy, read_served_model
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

ROTARY = "model.layers.0.self_attn.rotary_emb.inv_freq"
LAX = Policy(extra_tensors=("*.scale",))


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    return write_tiny(root / "model", "served by step 1", arch=request.param)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[1, 2])
async def engine(model: Path, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with real.engine_of(model, model.parent / "spool", tp=request.param) as engine:
        yield engine


def of_files(folder: Path, against: Path | None = None) -> str | None:
    served = read_served_model(against) if against else None
    return findings(folder, served, LAX, compute_in="auto").fingerprint


def checked(folder: Path, model: Path) -> Checkpoint:
    return check_checkpoint(None, folder, served=read_served_model(model), policy=LAX)


async def test_what_an_engine_began_with_has_the_fingerprint_of_its_files(
    engine: Any, model: Path
) -> None:
    assert engine.weights.live.fingerprint == of_files(model) == of_files(model, model)


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_is_staged_has_the_fingerprint_of_its_files(
    engine: Any, model: Path, tmp_path: Path, shards: int
) -> None:
    arch = json.loads((model / "config.json").read_text())["model_type"]
    folder = write_tiny(tmp_path / "new", "served by step 2", arch=arch, shards=shards)
    staged = await engine.weights.stage(checked(folder, model))
    try:
        assert staged.fingerprint == of_files(folder) == of_files(folder, model)
        assert staged.fingerprint != engine.weights.live.fingerprint
    finally:
        await engine.weights.release(staged)


async def test_what_the_engine_does_not_load_is_in_neither(
    engine: Any, model: Path, tmp_path: Path
) -> None:
    folder = write_tiny(
        tmp_path / "new", arch=json.loads((model / "config.json").read_text())["model_type"]
    )
    before = of_files(folder)
    file = folder / "model.safetensors"
    beside = {ROTARY: np.ones(64, np.float32), "up.scale": np.ones(3, np.float32)}
    save_file({**load_file(file), **beside}, file)
    staged = await engine.weights.stage(checked(folder, model))
    try:
        assert staged.fingerprint == of_files(folder) == of_files(folder, model) == before
    finally:
        await engine.weights.release(staged)


async def test_a_tied_head_is_in_neither(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", "served by step 1")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    async with real.engine_of(model, tmp_path / "spool") as engine:
        assert engine.weights.live.fingerprint == of_files(model)
