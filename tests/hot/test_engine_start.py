"""What is refused before an engine is built, and what an import costs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hotreload
from hotreload import AsyncHotEngine, HotEngine
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import (
    BadRequest,
    CheckpointCorrupt,
    ConfigError,
    HotReloadError,
    SourceUnavailable,
)
from hotreload.hot.engine_start import start
from hotreload.hot.new_weights import held_by
from hotreload.tiny import write_tiny

RUNS: Any = SimpleNamespace(
    server_args=SimpleNamespace(model_path="/models/qwen"), tokenizer_manager=None
)


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (RUNS, ConfigError, r"cannot be taken over.*HotEngine\('/models/qwen', …\)"),
        (7, ConfigError, "model must be a folder's path, not a int"),
        (
            "Qwen/Qwen3-0.6B@main",
            ConfigError,
            r"folder's path, .*snapshot_download\('Qwen/Qwen3-0.6B', revision='main'\) returns",
        ),
        ("./nope", ConfigError, r"folder's path, and there is no /.*/nope$"),
    ],
)
async def test_what_is_no_model_is_refused(
    model: Any, kind: type[HotReloadError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await start(model)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"boot": "dummy"}, "boot must be 'checkpoint' or 'random', not 'dummy'"),
        ({"tp": 0}, "tp must be a whole number, at least 1, not 0"),
        ({"first_device": -1}, "first_device must be a whole number, at least 0, not -1"),
        ({"device": 0}, "device must be a str, not 0"),
        ({"args": [1]}, r"args must be a Mapping, not \[1\]"),
        ({"terms": {}}, "terms must be a HotTerms, not {}"),
        ({"probes": ["Who?"]}, r"probes must be a list of Probe\(…\), not \['Who\?'\]"),
    ],
)
async def test_what_is_no_choice_is_refused(more: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await start("/nowhere", **more)


@pytest.mark.parametrize("given", [(), ("./model",)])
def test_an_asynchronous_engine_says_how_it_is_made(given: Any) -> None:
    made: Any = AsyncHotEngine
    with pytest.raises(TypeError, match=re.escape("by `await AsyncHotEngine.start(model, …)`")):
        made(*given, device="cpu")


async def test_a_damaged_model_is_refused_before_an_engine_is_built(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="NaN or infinite"):
        await start(write_tiny(tmp_path / "model", damage="nan"))


async def test_an_engine_is_put_on_the_devices_it_is_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(options: EngineOptions, **given: Any) -> None:
        raise ConfigError(f"tp={options.tp}, first_device={options.first_device}")

    monkeypatch.setattr(SglangEngine, "start", begin)
    with pytest.raises(ConfigError, match="tp=2, first_device=3"):
        await AsyncHotEngine.start(write_tiny(tmp_path / "model"), tp=2, first_device=3)


def test_a_program_that_could_not_start_keeps_no_thread(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt):
        HotEngine(tmp_path)


def test_what_is_no_folder_is_no_checkpoint() -> None:
    with pytest.raises(SourceUnavailable, match="nowhere is no folder"):
        held_by("/nowhere")
    with pytest.raises(SourceUnavailable, match=r"snapshot_download\('org/step_2'\) returns"):
        held_by("org/step_2")
    given: Any = ["/nowhere"]
    with pytest.raises(BadRequest, match="mapping of names to arrays, and this is a list"):
        held_by(given)


def test_jax_is_imported_when_an_engine_is_asked_for_and_not_before() -> None:
    code = (
        "import sys, json, hotreload; before = 'jax' in sys.modules or 'numpy' in sys.modules;"
        "from hotreload import HotEngine; print(json.dumps([before, 'jax' in sys.modules]))"
    )
    assert json.loads(subprocess.check_output([sys.executable, "-c", code])) == [False, True]


def test_each_name_that_is_exported_is_there() -> None:
    assert all(getattr(hotreload, name).__name__ == name for name in hotreload.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'HotEngin'"):
        getattr(hotreload, "HotEngin")  # noqa: B009
