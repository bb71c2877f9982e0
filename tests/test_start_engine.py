"""What of the settings reaches the engine; the engine here notes what it is given."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hotreload.checks.check import check_checkpoint
from hotreload.checks.fit import Policy
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import ConfigError
from hotreload.life.start_engine import start_engine
from hotreload.settings.load import Settings
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, Revision
from tests.nobody import as_nobody


def served(folder: Path) -> tuple[Path, Checkpoint]:
    model = write_tiny(folder / "model", "served by step 1")
    return model, check_checkpoint(Revision("1"), model, served=None, policy=Policy())


def settings_with(state: Path, model: Path) -> Settings:
    given = {"engine": {"model": str(model)}, "state": {"directory": str(state)}}
    return Settings.model_validate(given)


async def test_a_file_of_the_model_that_may_not_be_read_is_a_setting_that_names_it(
    tmp_path: Path,
) -> None:
    model, weights = served(tmp_path)
    (tmp_path / "state").mkdir(mode=0o777)
    (tmp_path / "state").chmod(0o777)
    closed = model / "tokenizer.json"
    closed.chmod(0o000)
    with as_nobody(model), pytest.raises(ConfigError, match=rf"{closed} may not be read"):
        await start_engine(settings_with(tmp_path / "state", model), model, weights)


async def test_a_disk_that_fills_up_with_the_models_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(model: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, weights = served(tmp_path)
    monkeypatch.setattr("hotreload.life.start_engine.copy_side_files", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        await start_engine(settings_with(tmp_path / "state", model), model, weights)


async def test_each_setting_of_the_engine_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    async def note(**more: Any) -> None:
        given.update(more)

    monkeypatch.setattr(SglangEngine, "start", note)
    engine = {"device": "cpu", "tp": 2, "dtype": "float32", "args": {"max_total_tokens": 64}}
    settings = Settings.model_validate(
        {
            "engine": {"model": str(tmp_path), **engine},
            "checks": {"max_drift": 7.0},
            "reload": {"memory": "auto"},
            "probe": [{"prompt": "Who?", "contains": "me"}],
            "state": {"directory": str(tmp_path / "state")},
        }
    )
    await start_engine(settings, tmp_path, None)
    assert {name: given[name] for name in engine} == engine
    assert (given["terms"].max_drift, given["terms"].memory) == (7.0, "auto")
    assert [(probe.prompt, probe.contains) for probe in given["probes"]] == [("Who?", "me")]
    assert given["terms"].spool == tmp_path / "state" / "staging"
    assert (given["model"], given["load_format"]) == (tmp_path, "dummy")
