"""Whatever the shape of a model, our own loader makes of it what upstream's makes; and whatever
changed between two checkpoints, what did not is shared, and the sums say the same.
"""

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from hotreload.engine.weights.leaf.differences import same_bits
from hotreload.engine.weights.leaf.leaves import layout_of
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.engine.weights.load.own import Reader
from hotreload.engine.weights.load.plan import record_plan
from hotreload.engine.weights.load.upstream_loader import load
from hotreload.tiny import write_tiny
from tests.engine import real
from tests.engine.wide import widened

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real_engine,
    pytest.mark.at_night,
]

WEIGHTS = "model.safetensors"
few = settings(
    max_examples=8,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[1, 2, 4])
async def engine(root: Path, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    folder = widened(write_tiny(root / f"tp_{request.param}"), kv_heads=4)
    async with real.engine_of(folder, root / "spool", tp=request.param) as engine:
        engine.tp = request.param
        yield engine


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """What decides the shapes, and how they are turned, padded and repeated."""
    groups = draw(st.sampled_from([1, 2]))
    key_heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "num_hidden_layers": draw(st.integers(1, 3)),
        # Never as many as keys: 0.1.0rc0 mistakes a square matrix of them for one that is turned.
        "hidden_size": 48 * draw(st.integers(1, 4)),
        "intermediate_size": 16 * draw(st.integers(1, 6)),
        "num_attention_heads": 4 * groups * key_heads,  # four devices can share them
        "num_key_value_heads": key_heads,
        "head_dim": draw(st.sampled_from([32, 64, 128])),
    }


def written(folder: Path, arch: str, sizes: dict[str, Any], dtype: Any) -> Path:
    """A model of these sizes with random weights."""
    write_tiny(folder, arch=arch)
    config = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    chance = np.random.default_rng(0)
    layers = range(config["num_hidden_layers"])
    tensors = {
        name: chance.normal(size=shape).astype(dtype)
        for pattern, shape in shapes(folder, config).items()
        for name in {pattern.replace(".0.", f".{at}.") for at in layers}
    }
    save_file(tensors, folder / WEIGHTS)
    return folder


def shapes(folder: Path, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of the tiny model's first layer, and those that are in none."""
    hidden, between, dim = (
        config[name] for name in ("hidden_size", "intermediate_size", "head_dim")
    )
    rows = {
        "q_proj": config["num_attention_heads"] * dim,
        "k_proj": config["num_key_value_heads"] * dim,
        "v_proj": config["num_key_value_heads"] * dim,
        "q_norm": dim,
        "k_norm": dim,
        "o_proj": hidden,
        "gate_proj": between,
        "up_proj": between,
        "down_proj": hidden,
        "layernorm": hidden,
        "model.norm": hidden,
        "embed_tokens": config["vocab_size"],
        "lm_head": config["vocab_size"],
    }
    columns = {"o_proj": config["num_attention_heads"] * dim, "down_proj": between}
    found = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        (row,) = (count for part, count in rows.items() if part in name)
        column = next((count for part, count in columns.items() if part in name), hidden)
        found[name] = (row, column)[: tensor.ndim]
    return found


def runner_of(engine: Any, folder: Path, dtype: str) -> Any:
    """What the loaders know of an engine that serves this model on the same devices."""
    from sgl_jax.srt.configs.model_config import ModelConfig

    config = ModelConfig(model_path=str(folder), dtype=dtype)
    config.configure_for_tensor_parallel(engine.tp)
    return SimpleNamespace(mesh=engine.weights.loaders._runner.mesh, model_config=config)


@few
@given(
    sizes=configs(),
    arch=st.sampled_from(["qwen3", "qwen2"]),
    served=st.sampled_from(["bfloat16", "float32"]),
    stored=st.sampled_from([ml_dtypes.bfloat16, np.float32, np.float16]),
)
async def test_it_is_made_as_upstreams_loader_makes_it(
    engine: Any, sizes: dict[str, Any], arch: str, served: str, stored: Any
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = written(Path(name) / "model", arch, sizes, stored)
        await asyncio.to_thread(compare, engine, folder, served)


def compare(engine: Any, folder: Path, served: str) -> None:
    runner = runner_of(engine, folder, served)
    theirs = load(runner, runner.model_config)
    layout = layout_of(theirs)
    plan = record_plan(runner, layout)
    assert plan.why_not is None
    leaves = jax.tree_util.tree_leaves(nnx.state(theirs))
    reader = Reader(real.checked(folder), threading.Event(), lambda size: None)
    for place in layout.places:
        path = layout.paths[place]
        (made,) = reader.make_leaves([(plan.parts[path], leaves[place])])
        assert same_bits(made.leaf, leaves[place]), path
    reader.close()


@few
@given(chosen=st.sets(st.integers(0, 24)))
async def test_what_did_not_change_is_shared_and_the_whole_is_what_upstreams_makes(
    engine: Any, root: Path, chosen: set[int]
) -> None:
    live = root / f"tp_{engine.tp}" / WEIGHTS
    with tempfile.TemporaryDirectory() as name:
        folder = write_tiny(Path(name) / "next")
        tensors = load_file(live)
        changed = {each for at, each in enumerate(sorted(tensors)) if at in chosen}
        for each in changed:
            tensors[each] = (tensors[each].astype(np.float32) + 1).astype(tensors[each].dtype)
        save_file(tensors, folder / WEIGHTS)
        checkpoint = real.checked(folder)
        ours = await engine.weights.stage(checkpoint)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loaders, "why_upstream", "the test wants it")
            theirs = await engine.weights.stage(checkpoint)
    was, layout = engine.weights.live.weights.leaves, engine.weights.layout
    for place in layout.places:
        path = layout.paths[place]
        is_new = any(part.tensor in changed for part in engine.weights.plan.parts[path])
        assert (ours.weights.leaves[place] is not was[place]) == is_new, path
        assert same_bits(ours.weights.leaves[place], theirs.weights.leaves[place]), path
    assert ours.loading.leaves_shared + ours.loading.leaves_staged == len(layout.places)
    assert ours.fingerprint == theirs.fingerprint
    assert ours.leaves == theirs.leaves
    for staged in (ours, theirs):
        await engine.weights.release(staged)
