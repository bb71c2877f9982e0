"""Whether our own loader is trusted, and whether the live weights still are what went live."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import Event, GenerationLive, LiveDrifted, LiveVerified, LoaderDistrusted
from hotreload.observe.history import drift_fields, iso


class Integrity(Collector):
    """Sees every event; for the status and for a scrape."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._distrust: str | None = None
        self._drift: LiveDrifted | None = None
        self._drifted_since = 0.0
        self._verified_at = 0.0

    def observe(self, event: Event) -> None:
        """Take in what was found out about the loader and the live weights."""
        match event:
            case LoaderDistrusted(reason):
                self._distrust = reason
            case LiveDrifted():
                self._drifted_since = self._drifted_since if self._drift else self._wall()
                self._drift = event
            case LiveVerified():
                self._drift, self._verified_at = None, self._wall()
            case GenerationLive():
                self._drift, self._verified_at = None, 0.0

    def fields(self) -> dict[str, Any]:
        """Return the part of the status that tells it."""
        drift, since = self._drift, iso(self._drifted_since)
        return {
            "loader": {"trusted": self._distrust is None, "reason": self._distrust},
            "drifted": {**drift_fields(drift), "since": since} if drift else None,
            "verified_at": iso(self._verified_at) if self._verified_at else None,
        }

    def collect(self) -> Iterator[Metric]:
        """Yield every metric from the start."""
        yield GaugeMetricFamily(
            "hotreload_loader_trusted",
            "1; 0 once our own loader was switched off, because upstream's made other weights.",
            self._distrust is None,
        )
        yield GaugeMetricFamily(
            "hotreload_live_drifted",
            "1 while leaves that answer are no longer what went live ([checks] verify_live_every).",
            self._drift is not None,
        )
        yield GaugeMetricFamily(
            "hotreload_live_verified_timestamp_seconds",
            "When the live weights were last computed anew and found whole; 0 for never.",
            self._verified_at,
        )
