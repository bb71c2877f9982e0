"""Memory planned by headers: what each device holds, and what to change where it does not fit."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.memory_plan import MemoryPlan, plan_memory
from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream.arguments import arguments_of, plan_for


@dataclass
class UpstreamArgs:
    """Upstream's ServerArgs, as far as its names go."""

    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None


GIB = 2**30
CONFIG = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "torch_dtype": "bfloat16",
}
TENSORS = {
    "model.embed_tokens.weight": [100, 512],
    "model.layers.0.self_attn.q_proj.weight": [512, 512],
    "model.layers.0.self_attn.k_proj.weight": [128, 512],
    "model.norm.weight": [512],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    entries = {name: {"dtype": "F32", "shape": shape} for name, shape in TENSORS.items()}
    header = json.dumps(entries).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return tmp_path


def plan(model: Path, **more: Any) -> MemoryPlan:
    how = {"tp": 1, "dtype": "auto", "args": {}, "sets": (2,), "there": None, **more}
    made = plan_memory(model, **how)
    assert made is not None
    return made


def test_weights_are_split_padded_copied_and_of_the_engines_dtype(model: Path) -> None:
    embed, query, key, norm = 100 * 512, 512 * 512 * 2, 128 * 512 * 2, 512  # heads are padded
    assert plan(model).weights == 2 * (embed + query + key + norm)
    assert plan(model, dtype="float32").weights == 2 * plan(model).weights
    assert plan(model, tp=2).weights == 2 * (embed + (query + key) // 2 + norm)
    assert plan(model, tp=4).weights == 2 * (embed + query // 4 + key // 2 + norm)
    limited = plan(model, args={"max_total_tokens": 10})
    assert limited.pool == 10 * 2 * 2 * 2 * 128 * 2  # layers, K and V, heads, head, bytes
    (model / "config.json").unlink()
    assert plan_memory(model, tp=1, dtype="auto", args={}, sets=(2,)) is None


@pytest.mark.parametrize(
    ("weights", "sets", "given", "fraction", "todo"),
    [
        (4 * GIB, 2, None, 0.755, None),  # Qwen3-8B in bfloat16 with tp = 4 on a v6e
        (4 * GIB, 1, None, 0.88, None),
        (4 * GIB, 2, 0.95, 0.95, "lower [engine.args] mem_fraction_static from 0.95"),
        (4 * GIB, 2, 0.1, 0.1, "raise [engine.args] mem_fraction_static from 0.1"),
        (16 * GIB, 2, None, 0.38, "set [reload] memory = 'host', or spread it over more devices"),
    ],
)
def test_two_sets_fit_or_it_says_what_to_change(
    weights: int, sets: int, given: float | None, fraction: float, todo: str | None
) -> None:
    made = MemoryPlan(weights, sets, 32 * GIB, 1024, None, given)
    assert made.fraction == fraction
    assert (todo or "") in (made.why_not() or "")
    assert (made.why_not() is None) == (todo is None)


def test_a_pool_for_too_few_tokens_does_not_fit() -> None:
    sets_in_80_gib = (35 * GIB, 2, 80 * GIB, 320 * 1024)  # 0.4 GiB are left: 1,300 tokens
    assert "a KV pool of 1342177280 bytes: set [reload] memory" in str(
        MemoryPlan(*sets_in_80_gib, None, None).why_not()
    )
    assert MemoryPlan(*sets_in_80_gib, 1000, None).why_not() is None  # the settings want no more


def test_weights_beside_those_of_the_index_are_not_counted(model: Path) -> None:
    once = plan(model).weights
    (model / "consolidated.safetensors").write_bytes((model / "a.safetensors").read_bytes())
    assert plan(model).weights == 2 * once
    index = {"weight_map": dict.fromkeys(TENSORS, "a.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert plan(model).weights == once


def test_a_device_that_says_its_size_gets_a_share_and_another_upstreams(
    model: Path,
) -> None:
    sized = SimpleNamespace(platform="tpu", memory_stats=lambda: {"bytes_limit": 10**7})
    silent = SimpleNamespace(platform="tpu", memory_stats=lambda: None)
    few = {"max_total_tokens": 10}
    options = EngineOptions(model, args=few)
    fraction = plan_for(options, [sized])
    assert fraction == plan(model, args=few, there=10**7).fraction
    assert plan_for(options, [silent]) is None
    small = SimpleNamespace(platform="tpu", memory_stats=lambda: {"bytes_limit": 10**6})
    assert plan_for(options, [small]) is None  # and the log says what to change
    one, weights = plan(model, args=few, sets=(2, 1), there=3 * 10**6), plan(model).weights
    assert (one.sets, one.why_not()) == (1, None)
    assert weights * 2 > 0.88 * 3 * 10**6 > weights
    own = EngineOptions(model, args={"mem_fraction_static": 0.5})
    for asked, share in ((options, fraction), (own, 0.5)):
        made = arguments_of(UpstreamArgs, asked, "tpu", fraction=fraction)
        assert made["mem_fraction_static"] == share


def test_a_cpu_gets_a_share_of_what_is_free_below_its_limits(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = SimpleNamespace(platform="cpu", memory_stats=lambda: None)
    few = {"max_total_tokens": 10}
    options, size = EngineOptions(model, args=few), plan(model).weights
    monkeypatch.setattr("hotreload.engine.memory_plan.host_bytes_free", lambda: 5 * size)
    of_the_machine = "hotreload.engine.memory_plan.machine_bytes_free"
    for machine in (5 * size, 20 * size):
        monkeypatch.setattr(of_the_machine, lambda free=machine: free)
        fraction = plan_for(options, [cpu])
        assert fraction is not None
        assert fraction * machine == pytest.approx(0.679 * 5 * size)
    assert "mem_fraction_static" not in arguments_of(UpstreamArgs, options, "cpu")
    monkeypatch.setattr("hotreload.engine.memory_plan.host_bytes_free", lambda: 2 * size)
    short = plan(model, is_cpu=True).why_not() or ""
    assert short.endswith("see who takes it, and that no limit of the unit is too low")
