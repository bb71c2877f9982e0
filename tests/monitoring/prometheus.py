"""A real Prometheus with the rules and the configuration of config/prometheus/, sped up."""

import json
import math
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from tests.monitoring.rules import FILES, FOLDER
from tests.waiting import PATIENCE, look_until

TICK = 0.1
INTERVAL = "250ms"
SOONER = {
    "for: 5m": "for: 0s",
    "for: 15m": "for: 0s",
    "for: 2m": "for: 0s",
    "for: 1m": "for: 0s",
    "for: 1d": "for: 0s",
    "min_over_time(hotreload_requests_held[1m])": "min_over_time(hotreload_requests_held[1s])",
    "seconds > 1800": "seconds > 1",
    "> 120\n": "> 1\n",
    "[6h]) > 3": "[6h]) > 0",
    "> 300 and": "> 3 and",
    "> 0) > 300\n": "> 0) > 1\n",
    "> 10\n": "> 2.5\n",
    "(hotreload_ready[2m])": "(hotreload_ready[1s])",
}
"""What of the alerts is too slow for a test, and what stands there instead."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus here: apt-get install prometheus"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """One server that scrapes these addresses, and its HTTP API."""

    def __init__(self, folder: Path, *targets: str) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir()
        for file in (*FILES, FOLDER / "prometheus.yml"):
            text = file.read_text().replace("15s", INTERVAL)
            text = text.replace("127.0.0.1:9479", '", "'.join(targets))
            (folder / file.name).write_text(_sooner(text) if file.name == "alerts.yml" else text)

    @contextmanager
    def running(self) -> Iterator["Prometheus"]:
        """Scrape until the end of the block."""
        log = (self.folder / "log").open("wb")
        child = subprocess.Popen(self._command(), stdout=log, stderr=log)
        try:
            self._until(lambda: child.poll() is not None or self.ask("targets"), "it listens")
            assert child.poll() is None, (self.folder / "log").read_text()
            yield self
        finally:
            child.terminate()
            child.wait(PATIENCE)
            log.close()

    def _command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def until(self, expr: str) -> None:
        """Wait until an expression gives something."""
        self._until(lambda: self.now(expr), expr)

    def firing(self) -> list[str]:
        """The alerts that fire now."""
        return [each["metric"]["alertname"] for each in self.now('ALERTS{alertstate="firing"}')]

    def said(self, alert: str) -> dict[str, str]:
        """The annotations of an alert that is active now."""
        active = self.ask("alerts")["alerts"]
        found = (each for each in active if each["labels"]["alertname"] == alert)
        said: dict[str, str] = next(found)["annotations"]
        return said

    def until_fires(self, alert: str) -> None:
        """Wait until an alert fires, or has fired between two looks."""
        self.until(f'last_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[1m])')

    def _until(self, holds: Callable[[], Any], what: str) -> None:
        look_until(holds, lambda: f"in vain: {what}", seconds=PATIENCE, tick=TICK)

    def ask(self, what: str, **fields: Any) -> Any:
        """The data of one answer; None while nobody listens yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except URLError:
            return None

    def now(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return list(self.ask("query", query=expr)["result"])

    def at(self, expr: str, moment: float) -> list[tuple[dict[str, str], float]]:
        """The labels and the number of each series that an expression gave at a moment."""
        found = self.ask("query", query=expr, time=moment)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def steps(
        self, expr: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[float]]]:
        """The labels and the numbers of each series, step by step, as a graph draws them."""
        found = self.ask("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [(each["metric"], [float(number) for _, number in each["values"]]) for each in found]

    def over(self, expr: str, start: float, end: float) -> list[dict[str, str]]:
        """The labels of the series that an expression gave, as numbers, from start to end."""
        # One step more: what came just before the end may lie between the last two.
        found = self.steps(expr, start, end + TICK, TICK)
        return [labels for labels, values in found if not all(map(math.isnan, values))]


def _sooner(text: str) -> str:
    for slow, quick in SOONER.items():
        assert slow in text, f"alerts.yml no longer says {slow!r}"
        text = text.replace(slow, quick)
    return text
