"""How checkpoints were loaded: the fields of an attempt, and the metrics."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.events import AttemptFinished, Event
from hotreload.observe.labels import LOADERS
from hotreload.types import Attempt, Generation, Loading, Outcome

NOT_LOADED = dict.fromkeys(
    (
        "loader",
        "loader_reason",
        "leaves_staged",
        "leaves_shared",
        "bytes_read",
        "leaves_changed",
        "largest_change",
        "most_changed",
    )
)
"""The fields of what was not made of a checkpoint."""


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


def loading_fields(loading: Loading | None) -> dict[str, Any]:
    """Return how weights were made, as an attempt and the status show it."""
    if loading is None:
        return dict(NOT_LOADED)
    change = loading.largest_change
    return {
        "loader": loading.loader,
        "loader_reason": loading.why or None,
        "leaves_staged": loading.leaves_staged,
        "leaves_shared": loading.leaves_shared,
        "bytes_read": loading.bytes_read,
        "leaves_changed": loading.leaves_changed,
        "largest_change": change if math.isfinite(change) else None,  # JSON has no infinity
        "most_changed": loading.most_changed or None,
    }


def loading_of(live: Generation, history: Iterable[Attempt]) -> Loading | None:
    """How the live weights were made; None for those an engine started with, and for noise.

    A rollback in memory makes none: they are as the attempt before it made them.
    """
    went_live = (a for a in history if a.outcome is Outcome.LIVE and a.revision == live.revision)
    made = (each for each in went_live if each.loading or each.is_of_a_start)
    return next((each.loading for each in made), None)
