"""The dashboard is what the code makes of it, Grafana knows every field, Prometheus every query."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.dashboard import FILE, panels, text
from tests.monitoring.page import asked_for, exported, filled_in, recorded_in
from tests.monitoring.rules import ALERTS, needs_promtool, promtool

DASHBOARD = json.loads(FILE.read_text())
PROMETHEUS_ALONE = ("useValueForTime", "titleFormat", "textFormat", "tagKeys")
"""Fields of an annotation that belong to the data source; the SDK knows none of them."""
VARIABLES = {
    "$job": ".*",
    "$instance": ".*",
    "$__rate_interval": "1m",
    "$__interval": "1m",
    "$__range": "6h",
}


def queries() -> Iterator[str]:
    """Every expression, with its variables filled in."""
    annotations = [each["expr"] for each in DASHBOARD["annotations"]["list"]]
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    yield from (filled_in(expr, VARIABLES) for expr in (*annotations, *targets))


def test_the_file_is_what_the_code_makes_of_it() -> None:
    assert FILE.read_text() == text(), "python -m tests.monitoring.dashboard writes it anew"


def test_it_comes_back_whole_through_grafanas_own_types() -> None:
    register_default_plugins()
    expected = json.loads(FILE.read_text())
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(FILE.read_text()))))
    for annotation in expected["annotations"]["list"]:
        for name in PROMETHEUS_ALONE:
            del annotation[name]
    assert back == expected


def test_it_names_no_metric_that_is_not_exported_and_needs_no_rule_of_ours() -> None:
    asked = set().union(*map(asked_for, queries()))
    assert len(asked) > 20
    assert asked - exported() == set()
    assert set().union(*map(recorded_in, queries())) == set()


@needs_promtool
def test_every_expression_can_be_read(tmp_path: Path) -> None:
    rules = [{"record": f"query_{n}", "expr": expr} for n, expr in enumerate(queries())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", file)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = {panel["id"]: set(cells(panel["gridPos"])) for panel in DASHBOARD["panels"]}
    for one, other in combinations(taken, 2):
        assert not taken[one] & taken[other], (one, other)


def cells(grid: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert grid["x"] + grid["w"] <= 24
    for x in range(grid["x"], grid["x"] + grid["w"]):
        for y in range(grid["y"], grid["y"] + grid["h"]):
            yield x, y


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_asks_the_chosen_source_about_the_chosen_instances(panel: Any) -> None:
    assert panel["description"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        metrics = len(re.findall(r"\b(hotreload|process)_", target["expr"]))
        assert target["expr"].count('{job=~"$job",instance=~"$instance"') == metrics


def test_a_generation_and_a_checksum_are_written_with_all_their_figures() -> None:
    """Grafana's `short` makes 1.23 K of generation 1234."""
    sorted_by_number = [panel for panel in panels() if len(panel.get("transformations", ())) > 1]
    of_numbers = [panel for panel in panels() if panel["title"] == "Live generation"]
    assert len(sorted_by_number) == 2
    for panel in (*of_numbers, *sorted_by_number):
        assert panel["fieldConfig"]["defaults"]["unit"] == "none"


def test_what_happened_is_counted_by_increase_over_an_hour_and_nothing_is_subtracted() -> None:
    """Of a shorter window Grafana's steps miss what happens between two, or see it twice."""
    counting = [expr for expr in queries() if "increase(" in expr]
    assert len(counting) == 6
    for expr in counting:
        assert re.fullmatch(r"sum by \([a-z, ]+\) \(round\(increase\(.+\[1h\]\)\)\)( > 0)?", expr)
    for expr in queries():
        assert not re.search(r"- *\w+{[^}]*} *offset", expr), expr
        assert "process_start_time_seconds" not in expr


def test_troubles_and_the_figures_of_a_comparison_are_all_shown() -> None:
    asked = set().union(*map(asked_for, queries()))
    shown = {name for name in exported() if re.match("hotreload_(behaviour|trouble)", name)}
    assert shown - asked == set()


def test_every_runbook_is_named_by_the_panel_that_shows_what_its_alert_tells() -> None:
    named = [re.findall(r"`hotreload explain (\w+)`", panel["description"]) for panel in panels()]
    alerts = {name for names in named for name in names}
    assert alerts - {"behaviour"} == set(ALERTS)


def test_the_provisioning_files_are_of_the_version_grafana_reads() -> None:
    folder = FILE.parent / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())
    providers = yaml.safe_load((folder / "dashboards" / "hotreload.yml").read_text())
    assert sources["apiVersion"] == providers["apiVersion"] == 1
    (source,), (provider,) = sources["datasources"], providers["providers"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    assert (provider["type"], provider["options"].keys()) == ("file", {"path"})
