"""The metrics of downloads, and of how checkpoints were loaded."""

import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import AttemptFinished, Event, GenerationLive, PhaseEntered, Progress
from hotreload.observe.labels import LOADERS
from hotreload.picture.under_way import Pace
from hotreload.types import Phase


class FetchMetrics(Collector):
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
        """Yield every metric, even before the first download."""
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
            "How long the current download still takes; 0 without one, +Inf when nothing comes.",
            self._seconds_left(),
        )

    def _seconds_left(self) -> float:
        fields = self._pace.fields() if self._last else None
        left = fields["seconds_left"] if fields else 0.0
        return math.inf if left is None else float(left)


class LoadMetrics(Collector):
    """Counts checkpoints that were staged, also those that did not go live in the end."""

    def __init__(self) -> None:
        self._by_loader = dict.fromkeys(LOADERS, 0)
        self._shared = 0
        self._largest_change = 0.0

    def observe(self, event: Event) -> None:
        """Take in how the weights of an attempt were made."""
        if isinstance(event, AttemptFinished) and (loading := event.attempt.loading):
            self._by_loader[loading.loader] = self._by_loader.get(loading.loader, 0) + 1
            self._shared += loading.leaves_shared
            self._largest_change = loading.largest_change

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, even before the first checkpoint."""
        loads = CounterMetricFamily(
            "hotreload_loads",
            "Checkpoints staged, by the loader they went through.",
            labels=["loader"],
        )
        for loader, count in self._by_loader.copy().items():
            loads.add_metric([loader], count)
        yield loads
        yield CounterMetricFamily(
            "hotreload_leaves_shared",
            "Leaves that were not staged again, because a set that is there has them.",
            self._shared,
        )
        yield GaugeMetricFamily(
            "hotreload_largest_change",
            "The largest change of a leaf in the last staged checkpoint: root mean square, over "
            "that of the live leaf.",
            self._largest_change,
        )
