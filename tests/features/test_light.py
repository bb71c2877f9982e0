"""What of a feature is known before a daemon begins it costs no process anything heavy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotreload.features import FEATURES

FOLDER = Path(__file__).parents[2] / "hotreload" / "features"
HEAVY = {"fastapi", "jax", "sgl_jax", "pydantic", "starlette", "prometheus_client"}


@pytest.mark.parametrize("part", ["settings", "report"])
def test_settings_and_reports_import_neither_a_server_nor_an_engine(part: str) -> None:
    names = [f"hotreload.features.{each.name}.{part}" for each in FEATURES]
    there = [name for name in names if (FOLDER / name.split(".")[2] / f"{part}.py").exists()]
    assert len(there) >= 3
    code = f"import sys, json, {', '.join(there)}; print(json.dumps([*sys.modules]))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert set(loaded) & HEAVY == set()
