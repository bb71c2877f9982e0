"""What is wrong now and waits for somebody to mend it, for the status and for a scrape."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import Event, TroubleTold
from hotreload.observe.history import iso
from hotreload.observe.named import shortened
from hotreload.troubles import TROUBLES


class TroublesNow(Collector):
    """Sees every event and keeps the troubles that are not over, by their code."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._standing: dict[str, tuple[TroubleTold, float]] = {}

    def observe(self, event: Event) -> None:
        """Take in a trouble that begins, goes on in other words, or is over."""
        if not isinstance(event, TroubleTold):
            return
        if event.message is None:
            self._standing = {c: s for c, s in self._standing.items() if c != event.code}
        else:
            _, since = self._standing.get(event.code, (event, self._wall()))
            self._standing = {**self._standing, event.code: (event, since)}

    def fields(self) -> list[dict[str, Any]]:
        """Return them as the status shows them, the oldest first."""
        return [
            {"code": told.code, "message": told.message, "todo": told.todo, "since": iso(since)}
            for told, since in self._standing.values()
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge with every code from the start, and what is said of those that stand."""
        standing = self._standing  # a scrape has a thread of its own, and nobody changes this one
        gauge = GaugeMetricFamily(
            "hotreload_trouble",
            "1 while something is wrong that somebody must mend, by its code; else 0.",
            labels=["code"],
        )
        for code in TROUBLES:
            gauge.add_metric([code], code in standing)
        yield gauge
        info = GaugeMetricFamily(
            "hotreload_trouble_info",
            "What is wrong, and the beginning of what to do about it; always 1.",
            labels=["code", "message", "todo"],
        )
        for code, (told, _) in standing.items():
            info.add_metric([code, shortened(told.message or ""), shortened(told.todo)], 1)
        yield info
