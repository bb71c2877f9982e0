"""The two metrics of a download."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import AttemptFinished, Event, GenerationLive, PhaseEntered, Progress


class Fetched(Collector):
    """Counts bytes that came; what lay here when a download began does not count."""

    def __init__(self) -> None:
        self._bytes = 0
        self._last: Progress | None = None

    def observe(self, event: Event) -> None:
        """Take in how far a download is, or that it is over."""
        match event:
            case Progress():
                last = self._last
                if last is not None and last.revision == event.revision:
                    self._bytes += max(0, event.done - last.done)
                self._last = event
            case PhaseEntered() | AttemptFinished() | GenerationLive():
                self._last = None

    def collect(self) -> Iterator[Metric]:
        """Both, from the start."""
        last = self._last
        yield CounterMetricFamily(
            "hotreload_fetched_bytes", "Bytes downloaded from the hub.", self._bytes
        )
        yield GaugeMetricFamily(
            "hotreload_fetch_progress_ratio",
            "How much of the download under way is there; 0 when there is none.",
            last.done / last.total if last and last.total else 0,
        )
