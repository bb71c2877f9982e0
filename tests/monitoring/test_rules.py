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

RUNBOOKS = (FOLDER.parents[1] / "docs" / "reference.md").read_text()
BASE = '{{ or $externalLabels.hotreload_docs "https://hotreload.example/docs" }}'
ASKED_IN_WORDS = re.compile(r"hotreload_\w+(?=\{)")
"""A series that an annotation asks for: those have labels to choose by."""
TIMES = {
    "LastReloadFailed": {"5m": "for 5 minutes"},
    "RejectedAfterExchange": {"[15m]": "after 15 minutes"},
    "AnswersWithheld": {"[15m]": "after 15 minutes"},
    "BakeConvicted": {"[15m]": "after 15 minutes"},
    "WeightsStale": {"> 1800": "half an hour"},
    "ReloadStuck": {
        '"swapping"} > 120': "the exchange for 2 minutes",
        '"probing|rolling_back"} > 600': "for 10,",
        "> 600": "600 s",
        "> 4500": "for 75",
    },
    "SourceDead": {"> 300": "for 5 minutes"},
    "SourcePassedOver": {"5m": "for 5 minutes"},
    "NotReady": {"5m": "for 5 minutes"},
    "PauseTooLong": {"p99_1h > 10": "10 seconds", "> 60": "more than 60"},
    "OldGenerationAnswers": {"15m": "for 15 minutes", "[5m]": "within 5 minutes"},
    "EngineLost": {"< 900": "last 15 minutes"},
    "ReplicaLost": {"15m": "for 15 minutes", "[1h]) > 2": "three times within an hour"},
    "WorkerLost": {"[1h]) > 2": "three were lost within an hour"},
    "ReplicasDiffer": {"15m": "for 15 minutes"},
    "RestartLoop": {"[6h]) > 3": "four times within 6 hours"},
    "DaemonDown": {"ALERTS{": "lasts until it can"},
    "GenerationSkew": {"15m": "15 minutes"},
    "StateNotSaved": {"5m": "for 5 minutes"},
    "NoiseAnswers": {"15m": "for 15 minutes"},
    "SourceOverruled": {"1d": "for a day"},
    "LiveWeightsDrifted": {"== 1": "at once"},
    "LoaderDistrusted": {"5m": "for 5 minutes"},
    "NothingNew": {"hotreload_expected_every": "`[metrics] expect_every`"},
    "ErrorsAnswered": {
        "ratio_5m > 0.05": "more than 5 % ended with a 5xx within 5 minutes",
        ") > 10": "more than 10",
    },
    "RequestsHeld": {"[1m]": "for 3 minutes", "for: 2m": "for 3 minutes"},
    "Paused": {"> 300": "for 5 minutes"},
    "Trouble": {"1m": "for a minute"},
    "WaitsForFiles": {"1m": "for a minute"},
}
"""What an alert waits for, and how its runbook says it."""
TESTS = sorted(Path(__file__).parent.glob("*.test.yml"))


def put_in_place(folder: Path, configuration: str) -> Path:
    """The rules and a configuration, where docs/reference.md copies them to."""
    for file in FILES:
        (folder / file.name).write_text(file.read_text())
    place = folder / "prometheus.yml"
    place.write_text(configuration)
    return place


@needs_promtool
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prometheus_can_be_started_with_the_configuration(name: str, tmp_path: Path) -> None:
    place = put_in_place(tmp_path, (FOLDER / name).read_text())
    promtool("check", "config", "--lint=all", "--lint-fatal", place)


def test_what_is_copied_to_prometheus_are_its_rules_and_one_configuration() -> None:
    assert {file.name for file in FOLDER.glob("*.yml")} == {
        *(file.name for file in FILES),
        "prometheus.yml",
    }
    assert {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("prometheus.yml")} == set(
        CONFIGURATIONS
    )


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *FILES)
    promtool("test", "rules", *TESTS)


def test_every_alert_is_tried_firing_and_quiet() -> None:
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    tried = [each for test in tests for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in tried if each.get("exp_alerts")} == set(ALERTS)
    assert {each["alertname"] for each in tried if not each.get("exp_alerts")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_it_means_and_where_to_read_on(name: str) -> None:
    said = ALERTS[name]["annotations"]
    assert said.keys() == {"summary", "description", "todo", "runbook_url"}
    assert said["runbook_url"] == f"{BASE}/reference.md#alert-{name.lower()}"
    assert ALERTS[name]["labels"]["severity"] in {"warning", "critical"}


def test_rules_name_no_metric_that_is_not_exported() -> None:
    exprs = [rule["expr"] for rule in (*ALERTS.values(), *RECORDED.values())]
    words = " ".join(rule["annotations"]["description"] for rule in ALERTS.values())
    named = set(ASKED_IN_WORDS.findall(words))
    assert len(named) == 10
    asked = named.union(*map(asked_for, exprs))
    assert asked - exported() == set()
    assert set().union(*map(recorded_in, exprs)) <= set(RECORDED)


def test_a_configuration_names_every_file_of_rules() -> None:
    for name in CONFIGURATIONS:
        config = yaml.safe_load((FOLDER / name).read_text())
        assert config["rule_files"] == [file.name for file in FILES]


def test_every_alert_has_its_runbook() -> None:
    """The anchor of a heading is its words in lower case, joined by hyphens."""
    assert re.findall(r"^### Alert (\w+)$", RUNBOOKS, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_the_runbook_says_the_times_of_the_rule(name: str) -> None:
    (text,) = re.findall(rf"(?ms)^### Alert {name}\n\n(.+?)(?=^#|\Z)", RUNBOOKS)
    rule = f"{ALERTS[name]['expr']} for: {ALERTS[name].get('for')}"
    for condition, words in TIMES[name].items():
        assert condition in rule
        assert words.lower() in text.lower()


@needs_promtool
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_place_of_the_docs_in_the_comment_is_one_prometheus_takes(
    name: str, tmp_path: Path
) -> None:
    text = (FOLDER / name).read_text().replace("  #external_labels:", "  external_labels:")
    assert yaml.safe_load(text)["global"]["external_labels"].keys() == {"hotreload_docs"}
    promtool("check", "config", put_in_place(tmp_path, text))


@needs_promtool
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_alertmanager_in_the_comment_is_one_prometheus_takes(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    taken, lines = re.subn(r"^#(alerting:| {2,})", r"\1", text, flags=re.MULTILINE)
    assert lines == 4
    assert yaml.safe_load(taken)["alerting"]["alertmanagers"]
    promtool("check", "config", put_in_place(tmp_path, taken))
