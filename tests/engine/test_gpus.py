"""What an engine gets by itself on a GPU, here from its name alone, and of XLA on a CPU."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream import arguments, embedded_engine
from hotreload.engine.upstream.arguments import arguments_of, find_devices
from hotreload.errors import ConfigError, DeviceUnavailable
from hotreload.facts.upstream import XLA_FLAGS, computes_on, flags_to_add

TRITON, AUTOTUNER = XLA_FLAGS["gpu"]
(SCHEDULER,) = XLA_FLAGS["cpu"]
GPU = SimpleNamespace(platform="gpu")


@dataclass
class UpstreamArgs:
    """What of upstream's ServerArgs differs by the device."""

    device: str = "tpu"
    attention_backend: str = "fa"
    disable_precompile: bool = False
    chunked_prefill_size: int = 4096


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """JAX finds a GPU, and nobody has said anything about it."""
    monkeypatch.setattr(jax, "devices", lambda: [GPU])
    monkeypatch.setattr(jax.config, "update", lambda name, value: pytest.fail(f"{name} = {value}"))
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(type(jax.config), "jax_platforms", "", raising=False)
    return monkeypatch


def test_it_attends_natively_and_compiles_no_kernels_of_tpus_unless_told(tmp_path: Path) -> None:
    options = EngineOptions(tmp_path)
    assert {each.name for each in fields(UpstreamArgs)} >= arguments.ON_DEVICE["gpu"].keys()
    given = arguments_of(UpstreamArgs, options, "gpu")
    assert given == {"device": "gpu", "attention_backend": "native", "disable_precompile": True}
    told = EngineOptions(tmp_path, args={"attention_backend": "fa"})
    assert arguments_of(UpstreamArgs, told, "gpu")["attention_backend"] == "fa"
    assert arguments_of(UpstreamArgs, options, "tpu") == {"device": "tpu"}


def test_xla_gets_its_flags_before_jax_looks_and_the_log_says_why(
    found: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def look() -> list[SimpleNamespace]:
        seen.append(os.environ["XLA_FLAGS"])
        return [GPU]

    found.setattr(jax, "devices", look)
    with caplog.at_level(logging.INFO, "hotreload.engine"):
        assert find_devices("gpu", 1, 0) == [GPU]
    assert seen == [f"{TRITON} {AUTOTUNER}"]
    (told,) = caplog.records
    assert (told.msg, told.__dict__["added"]) == ("engine.xla_flags", seen[0])
    assert "autotuner ended an engine" in told.__dict__["why"]


def test_flags_of_ones_own_stay_as_they_are(found: pytest.MonkeyPatch) -> None:
    found.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_dump_to=/tmp/x")
    find_devices("gpu", 1, 0)
    own = "--xla_gpu_autotune_level=4 --xla_dump_to=/tmp/x"
    assert os.environ["XLA_FLAGS"] == f"{own} {TRITON}"


@pytest.mark.parametrize(
    ("device", "platforms", "nodes", "platform"),
    [
        ("gpu", "", [], "gpu"),
        ("auto", "cuda,cpu", [], "gpu"),
        ("auto", "", ["nvidia0"], "gpu"),
        ("auto", "", ["nvidiactl"], "cpu"),
        ("auto", "", [], "cpu"),
        ("auto", "", ["accel0"], ""),
        ("auto", "", ["vfio/0"], ""),
        ("auto", "cpu", ["nvidia0"], "cpu"),
        ("cpu", "", ["nvidia0"], "cpu"),
        ("tpu", "cuda", ["nvidia0"], "tpu"),
    ],
)
def test_what_will_compute_is_known_before_jax_looks(
    tmp_path: Path, device: str, platforms: str, nodes: list[str], platform: str
) -> None:
    (tmp_path / "vfio").mkdir()
    for node in nodes:
        (tmp_path / node).touch()
    assert computes_on(device, {"JAX_PLATFORMS": platforms}, tmp_path) == platform


def test_xla_gets_the_flags_of_what_computes() -> None:
    assert flags_to_add("gpu", {}) == [TRITON, AUTOTUNER]
    assert flags_to_add("cpu", {}) == [SCHEDULER]
    assert flags_to_add("tpu", {}) == flags_to_add("", {}) == []
    own = SCHEDULER.replace("false", "true")
    assert flags_to_add("cpu", {"XLA_FLAGS": f"--xla_dump_to=/tmp/x {own}"}) == []


@pytest.mark.parametrize("named", ["cuda", "cuda,cpu", "rocm", "gpu"])
def test_jax_may_call_it_by_the_name_of_its_maker(found: pytest.MonkeyPatch, named: str) -> None:
    found.setattr(type(jax.config), "jax_platforms", named, raising=False)
    assert find_devices("gpu", 1, 0) == find_devices("auto", 1, 0) == [GPU]
    with pytest.raises(ConfigError, match="make them the same"):
        find_devices("tpu", 1, 0)
    found.setenv("JAX_PLATFORMS", named)
    with embedded_engine._name_platform("gpu"):
        assert os.environ["JAX_PLATFORMS"] == "gpu", "upstream compares it with the device"
    assert os.environ["JAX_PLATFORMS"] == named


def test_a_gpu_that_is_not_there_never_becomes_a_cpu(found: pytest.MonkeyPatch) -> None:
    found.setattr(jax, "devices", lambda: [SimpleNamespace(platform="cpu")])
    with pytest.raises(DeviceUnavailable, match="'gpu', but JAX finds only cpu"):
        find_devices("gpu", 1, 0)


@pytest.mark.real_engine
def test_the_xla_that_is_installed_here_knows_the_flags() -> None:
    """It ends a process that names one that it does not know."""
    code = "import jax; print(jax.devices()[0].platform)"
    assert told_by(code, TRITON, AUTOTUNER, SCHEDULER) == "cpu\n"


@pytest.mark.real_engine
def test_a_step_on_a_cpu_holds_a_float32_copy_of_one_weight_at_a_time() -> None:
    """The engine finds its devices first: that sets the flag."""
    assert float(told_by(COPIES)) < 2


COPIES = """
import jax, jax.numpy as jnp
from hotreload.engine.upstream.arguments import find_devices

find_devices("auto", 1, 0)

def step(row, weights):
    for each in weights:
        row = row @ each
    return row

row, weights = jnp.ones((8, 512), jnp.bfloat16), [jnp.ones((512, 512), jnp.bfloat16)] * 16
needs = jax.jit(step).lower(row, weights).compile().memory_analysis()
print(needs.temp_size_in_bytes / (weights[0].size * 4))
"""
"""A program that prints how many float32 copies of a weight a step holds at a time, of 16."""


def told_by(code: str, *flags: str) -> str:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return told.stdout
