"""The metrics of a download."""

import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import AttemptFinished, Event, GenerationLive, PhaseEntered, Progress
from hotreload.picture.under_way import Pace
from hotreload.types import Phase


class Fetched(Collector):
    """Counts bytes that came from the hub; bytes that lay here before a download do not count."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._bytes = 0
        self._last: Progress | None = None

    def observe(self, event: Event) -> None:
        """Take in how far a download is, or that it is over."""
        if isinstance(event, Progress) and event.phase is not Phase.FETCHING:
            return  # what is loaded came before
        match event:
            case Progress():
                last = self._last
                if last is not None and last.revision == event.revision:
                    self._bytes += max(0, event.done - last.done)
                self._last = event
            case PhaseEntered() | AttemptFinished() | GenerationLive():
                self._last = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, also before the first download."""
        last = self._last
        yield CounterMetricFamily(
            "hotreload_fetched_bytes", "Bytes downloaded from the hub.", self._bytes
        )
        yield GaugeMetricFamily(
            "hotreload_fetch_progress_ratio",
            "Which part of the current download is on the disk, 0 to 1; 0 when there is none.",
            last.done / last.total if last and last.total else 0,
        )
        yield GaugeMetricFamily(
            "hotreload_fetch_size_bytes",
            "How large the current download is; 0 when there is none.",
            last.total if last else 0,
        )
        yield GaugeMetricFamily(
            "hotreload_fetch_remaining_seconds",
            "How long the current download still takes; 0 when there is none, +Inf when nothing "
            "comes.",
            self._seconds_left(),
        )

    def _seconds_left(self) -> float:
        fields = self._pace.fields() if self._last else None
        left = fields["seconds_left"] if fields else 0.0
        return math.inf if left is None else float(left)
