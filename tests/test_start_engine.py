"""What of the settings reaches the engine; the engine here notes what it is given."""

from pathlib import Path
from typing import Any

import pytest

from hotreload.config import Settings
from hotreload.engine.sglang import SglangEngine
from hotreload.start_engine import start_engine


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
            "probe": [{"prompt": "Who?", "contains": "me"}],
            "state": {"directory": str(tmp_path / "state")},
        }
    )
    await start_engine(settings, tmp_path, None)
    assert {name: given[name] for name in engine} == engine
    assert given["max_drift"] == 7.0
    assert [(probe.prompt, probe.contains) for probe in given["probes"]] == [("Who?", "me")]
    assert given["spool"] == tmp_path / "state" / "staging"
    assert (given["model"], given["load_format"]) == (tmp_path, "dummy")
