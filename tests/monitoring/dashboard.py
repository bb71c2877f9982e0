"""Writes config/grafana/hotreload.json: `python -m tests.monitoring.dashboard`.

Grafana's JSON repeats itself for each panel; in `rows.py` each is a few lines.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.monitoring.rows import JSON, ROWS, Panel, series

FILE = Path(__file__).parents[2] / "config" / "grafana" / "hotreload.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def dashboard() -> JSON:
    """The whole dashboard."""
    return {
        "uid": "hotreload",
        "title": "hotreload",
        "description": "Written by `python -m tests.monitoring.dashboard`; "
        "change it in tests/monitoring/rows.py.",
        "tags": ["hotreload"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "schemaVersion": 41,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(variables())},
        "annotations": {"list": [swaps()]},
        "panels": [*placed()],
    }


def variables() -> Iterator[JSON]:
    """Which Prometheus, which jobs, which instances."""
    kept: JSON = {
        "skipUrlSync": False,
        "multi": False,
        "allowCustomValue": True,
        "includeAll": False,
    }
    kept |= {"auto": False, "auto_min": "10s", "auto_count": 30}
    yield {"type": "datasource", "name": "datasource", "query": "prometheus", **kept}
    asked = {
        "job": "label_values(hotreload_build_info, job)",
        "instance": 'label_values(hotreload_build_info{job=~"$job"}, instance)',
    }
    for name, query in asked.items():
        yield kept | {
            "type": "query",
            "name": name,
            "datasource": SOURCE,
            "query": {"qryType": 1, "query": query, "refId": name},  # 1: the values of a label
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "multi": True,
            "includeAll": True,
            "refresh": 2,  # at every change of the time range
            "sort": 1,
        }


def swaps() -> JSON:
    """A mark where weights went live: the value is the time, the labels say what."""
    when = series("last_reload_success_timestamp_seconds")
    what = f"on (job, instance) group_left (generation, label) {series('live_info')}"
    return {
        "name": "Swaps",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "purple",
        "builtIn": 0,
        "expr": f"1000 * {when} * {what}",
        "useValueForTime": True,
        "titleFormat": "Generation {{generation}} on {{instance}}",
        "textFormat": "{{label}}",
        "tagKeys": "job,instance",
    }


def placed() -> Iterator[JSON]:
    """Every row and its panels, left to right and top to bottom."""
    number, y = 1, 0
    for title, panels in ROWS.items():
        yield {
            "type": "row",
            "id": number,
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        }
        number, x, y, bottom = number + 1, 0, y + 1, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, bottom
            grid = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield drawn(panel) | {"id": number, "gridPos": grid, "repeatDirection": "h"}
            number, x, bottom = number + 1, x + panel.width, max(bottom, y + panel.height)
        y = bottom


def drawn(panel: Panel) -> JSON:
    """A panel without its place."""
    made: JSON = {
        "type": panel.kind,
        "title": panel.title,
        "description": described(panel),
        "transparent": False,
        "datasource": SOURCE,
        "targets": [target(panel, *each) for each in enumerate(panel.queries)],
        "fieldConfig": {"defaults": looks(panel), "overrides": []},
    }
    if panel.kind == "table":
        made["transformations"] = [*transformed(panel)]
    return made


def described(panel: Panel) -> str:
    """What a panel shows, and how to read the runbooks; Grafana reads it as Markdown."""
    runbooks = " or ".join(f"`hotreload explain {alert}`" for alert in panel.alerts)
    return f"{panel.about}\n\nWhat to do: {runbooks}" if runbooks else panel.about


def transformed(panel: Panel) -> Iterator[JSON]:
    """Which columns a table has, and in which order its rows come."""
    renamed = {} if panel.value == "Value" else {"renameByName": {"Value": panel.value}}
    hidden = {"excludeByName": dict.fromkeys(panel.hidden, True)}
    yield {"id": "organize", "options": hidden | renamed}
    if panel.newest_first:  # as words, generation 10 would come before 9
        number = {"targetField": "generation", "destinationType": "number"}
        yield {"id": "convertFieldType", "options": {"conversions": [number]}}
        yield {"id": "sortBy", "options": {"sort": [{"field": "generation", "desc": True}]}}


def target(panel: Panel, number: int, query: tuple[str, str]) -> JSON:
    expr, legend = query
    made = {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expr}
    if panel.at_least is not None:
        made["interval"] = panel.at_least
    if panel.kind == "table":
        return made | {"instant": True, "range": False, "format": "table"}
    return made | {"legendFormat": legend}


def looks(panel: Panel) -> JSON:
    steps: list[JSON] = [{"value": None, "color": "green"}]
    if panel.good_from is not None:
        good = {"value": panel.good_from, "color": "green"}
        steps = [{"value": None, "color": "red"}, good]
    if panel.bad_from is not None:
        steps += [{"value": panel.bad_from, "color": "red"}]
    found: JSON = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    match panel.kind:
        case "timeseries":
            found |= {"min": 0, "custom": panel.draw}
        case "state-timeline":
            custom = {"fillOpacity": 70, "lineWidth": 0}
            found |= {"color": {"mode": "continuous-BlPu"}, "custom": custom}  # by the number
        case "table":
            found |= {"custom": {"align": "auto", "inspect": False, "filterable": True}}
    return found


def panels() -> list[JSON]:
    """Every panel, without the rows."""
    return [panel for panel in placed() if panel["type"] != "row"]


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
