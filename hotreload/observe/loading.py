"""The metrics of how checkpoints were loaded."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import AttemptFinished, Event
from hotreload.observe.labels import LOADERS


class Loads(Collector):
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
        """Yield every metric, also before the first checkpoint."""
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
            "Leaves that were not staged again, because their tensors were those of the live ones.",
            self._shared,
        )
        yield GaugeMetricFamily(
            "hotreload_largest_change",
            "The largest change of a leaf in the checkpoint that was staged last: the root mean "
            "square of the change, over that of the live leaf.",
            self._largest_change,
        )
