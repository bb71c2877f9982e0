"""The rules of config/prometheus/, and the real promtool."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

FOLDER = Path(__file__).parents[2] / "config" / "prometheus"
FILES = [FOLDER / "recording.yml", FOLDER / "alerts.yml"]
CONFIGURATIONS = ["prometheus.yml", "several-hosts/prometheus.yml"]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
)


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Every `record` or `alert` by its name."""
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


ALERTS, RECORDED = rules("alert"), rules("record")


def promtool(*arguments: str | Path) -> None:
    """Run it; what it finds fails the test."""
    command = ["promtool", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
