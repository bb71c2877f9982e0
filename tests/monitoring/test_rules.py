"""The rules are sound, fire when they should, and ask for nothing that is not exported."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

from tests.monitoring.page import asked_for, exported, recorded_in
from tests.monitoring.rules import (
    ALERTS,
    CONFIGURATIONS,
    FILES,
    FOLDER,
    RECORDED,
    needs_promtool,
    promtool,
)

TESTS = Path(__file__).with_name("alerts.test.yml")


@needs_promtool
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prometheus_can_be_started_with_the_configuration(name: str) -> None:
    promtool("check", "config", "--lint=all", "--lint-fatal", FOLDER / name)


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *FILES)
    promtool("test", "rules", TESTS)


def test_every_alert_is_tried_firing_and_quiet() -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    tried = [each for test in tests for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in tried if each.get("exp_alerts")} == set(ALERTS)
    assert {each["alertname"] for each in tried if not each.get("exp_alerts")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_it_means_and_where_to_read_on(name: str) -> None:
    said = ALERTS[name]["annotations"]
    assert said.keys() == {"summary", "description", "runbook"}
    assert said["runbook"] == f"README.md#alert-{name.lower()}"
    assert ALERTS[name]["labels"]["severity"] in {"warning", "critical"}


def test_rules_name_no_metric_that_is_not_exported() -> None:
    exprs = [rule["expr"] for rule in (*ALERTS.values(), *RECORDED.values())]
    asked = set().union(*map(asked_for, exprs))
    assert len(asked) > 8
    assert asked - exported() == set()
    assert set().union(*map(recorded_in, exprs)) <= set(RECORDED)


def test_every_file_a_configuration_names_lies_beside_it() -> None:
    for name in CONFIGURATIONS:
        config = yaml.safe_load((FOLDER / name).read_text())
        assert config["rule_files"] == [file.name for file in FILES]


def test_every_alert_has_its_runbook() -> None:
    """The anchor of a heading is its words in lower case, joined by hyphens."""
    readme = (FOLDER.parents[1] / "README.md").read_text()
    assert re.findall(r"^#### Alert (\w+)$", readme, re.MULTILINE) == list(ALERTS)
