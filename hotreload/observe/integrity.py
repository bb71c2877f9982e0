"""Whether our own loader is trusted, and whether the live weights still are what went live."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import (
    Event,
    GenerationLive,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ReplicaMoved,
)
from hotreload.observe.history import drift_fields, iso
from hotreload.types import ReplicaState


@dataclass(slots=True)
class _Weights:
    """What was found out about one engine."""

    distrust: str | None = None
    drift: LiveDrifted | None = None
    drifted_since: float = 0.0
    verified_at: float = 0.0

    def fields(self) -> dict[str, Any]:
        drift, since = self.drift, iso(self.drifted_since)
        return {
            "drifted": {**drift_fields(drift), "since": since} if drift else None,
            "verified_at": iso(self.verified_at) if self.verified_at else None,
        }


class Integrity(Collector):
    """Sees every event; for the status and for a scrape."""

    def __init__(self, wall: Callable[[], float] = time.time, replicas: int = 1) -> None:
        self._wall = wall
        self._of = [_Weights() for _ in range(replicas)]
        """What was found out about each engine, by its index."""

    def observe(self, event: Event) -> None:
        """Take in what was found out about the loader and the live weights."""
        match event:
            case LoaderDistrusted(reason, replica):
                self._of[replica].distrust = reason
            case LiveDrifted(replica=replica):
                of = self._of[replica]
                of.drifted_since = of.drifted_since if of.drift else self._wall()
                of.drift = event
            case LiveVerified(replica=replica):
                self._of[replica].drift, self._of[replica].verified_at = None, self._wall()
            case GenerationLive(replica=replica):
                self._of[replica].drift, self._of[replica].verified_at = None, 0.0
            case ReplicaMoved(replica, ReplicaState.LOST):  # the next one has other memory
                self._of[replica] = _Weights()

    def fields(self) -> dict[str, Any]:
        """Return the part of the status that tells it: what is wrong with any of the engines."""
        distrust = next((each.distrust for each in self._of if each.distrust), None)
        told = next((each for each in self._of if each.drift), None)
        told = told or min(self._of, key=lambda each: each.verified_at)  # not all, or the oldest
        return {"loader": {"trusted": distrust is None, "reason": distrust}, **told.fields()}

    def fields_of(self, replica: int) -> dict[str, Any]:
        """Return what is known of the weights in one engine."""
        return self._of[replica].fields()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric from the start."""
        yield self._told(
            "loader_trusted",
            "1; 0 once our own loader was switched off, because upstream's made other weights.",
            lambda each: each.distrust is None,
        )
        yield self._told(
            "live_drifted",
            "1 while leaves that answer are no longer what went live ([checks] verify_live_every).",
            lambda each: each.drift is not None,
        )
        yield self._told(
            "live_verified_timestamp_seconds",
            "When the live weights were last computed anew and found whole; 0 for never.",
            lambda each: each.verified_at,
        )

    def _told(self, name: str, text: str, number: Callable[[_Weights], float]) -> Metric:
        family = GaugeMetricFamily(f"hotreload_{name}", text, labels=["replica"])
        for index, each in enumerate(self._of):
            family.add_metric([str(index)], number(each))
        return family
