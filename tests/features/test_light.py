"""What of a feature is known before a daemon begins it costs no process anything heavy."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from hotreload.features import FEATURES

HEAVY = {"fastapi", "jax", "sgl_jax", "pydantic", "starlette", "prometheus_client"}
KNOWN_BEFORE = ["hotreload.features"]
"""It imports the settings, the words and the reasons of each."""
REPORTS = [f"hotreload.features.{each.name}.report" for each in FEATURES]


@pytest.mark.parametrize("names", [KNOWN_BEFORE, list(filter(find_spec, REPORTS))])
def test_settings_and_reports_import_neither_a_server_nor_an_engine(names: list[str]) -> None:
    assert names == KNOWN_BEFORE or len(names) >= 3
    code = f"import sys, json, {', '.join(names)}; print(json.dumps([*sys.modules]))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert set(loaded) & HEAVY == set()
