"""Metrics that are read at each scrape instead of counted before, so they cannot lag behind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.core.ledger import Ledger
from hotreload.observe.labels import KV_USES, WEIGHT_PLACES
from hotreload.picture.picture import Picture, ReplicaReading
from hotreload.types import AnsweringGeneration, Generation


class LiveMetrics(Collector):
    """The metrics of the live generation; a scrape in mid-swap never mixes two generations."""

    def __init__(self, live: Callable[[], Generation | None], max_leaves: int) -> None:
        """`max_leaves`: the largest number of leaves whose checksum is exported."""
        self._live = live
        self._max_leaves = max_leaves

    def collect(self) -> Iterator[Metric]:
        live = self._live()
        labels = ["generation", "revision", "label", "fingerprint"]
        info = GaugeMetricFamily(
            "hotreload_live_info", "The live generation; always 1.", labels=labels
        )
        number = GaugeMetricFamily(
            "hotreload_generation", "The number of the live generation; 0 before the first."
        )
        number.add_metric([], live.number if live else 0)
        if live is not None:
            said = [str(live.number), live.revision.id, live.revision.label, live.fingerprint]
            info.add_metric(said, 1)
        yield info
        yield number
        yield GaugeMetricFamily(
            "hotreload_noise_live",
            "1 while weights with noise on them answer (`hotreload perturb`).",
            live is not None and live.revision.is_noise,
        )
        if self._max_leaves:
            yield self._checksums(live)
        yield GaugeMetricFamily(
            "hotreload_leaf_checksums_left_out",
            "Live leaves without an exported checksum: beyond [metrics] max_leaves.",
            left_out(live, self._max_leaves),
        )

    def _checksums(self, live: Generation | None) -> Metric:
        sums = GaugeMetricFamily(
            "hotreload_leaf_checksum", "Each live leaf's checksum, at most 2^53.", labels=["leaf"]
        )
        leaves = live.leaves.items() if live else ()
        for leaf, checksum in islice(leaves, self._max_leaves):
            sums.add_metric([leaf], checksum)
        return sums


def left_out(live: Generation | None, max_leaves: int) -> int:
    """Count the leaves that are too many; none where no checksum is asked for."""
    return max(0, len(live.leaves) - max_leaves) if live and max_leaves else 0


class ReadMetrics(Collector):
    """The metrics of the readings and of the ledger."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        readings, ledger = self._picture.readings, self._picture.ledger
        yield from _of_replicas(readings.replicas())
        yield from _answering_metrics(readings.answering())
        yield GaugeMetricFamily(
            "hotreload_engine_lost_timestamp_seconds",
            "When an engine was last lost, also before a restart; 0 for never.",
            ledger.lost_at,
        )
        yield GaugeMetricFamily(
            "hotreload_overruled",
            "1 while an operator's choice is live instead of the revision the source wishes.",
            ledger.overruled is not None,
        )
        yield GaugeMetricFamily(
            "hotreload_last_new_timestamp_seconds",
            "When new weights last went live, also before a restart; 0 for never. A rollback, "
            "noise and a start are nothing new.",
            new_at(ledger),
        )


def new_at(ledger: Ledger) -> float:
    """Find when a revision first went live, of the one that did so last; 0 for never."""
    first: dict[str, float] = {}
    for place in tuple(ledger.generations):  # whole at once: the loop changes it meanwhile
        if not place.revision.is_noise:
            first.setdefault(place.revision.id, place.since)
    return max(first.values(), default=0.0)


GAUGES: tuple[tuple[str, str, Callable[[ReplicaReading], int]], ...] = (
    (
        "requests_inside",
        "Requests that are being answered now.",
        lambda each: each.inside,
    ),
    (
        "requests_held",
        "Requests that wait at the closed gate now.",
        lambda each: each.held,
    ),
    (
        "engine_waiting",
        "Requests in the engine that wait for a place in a batch.",
        lambda each: each.load.waiting,
    ),
    (
        "engine_running",
        "Requests in the engine that make tokens.",
        lambda each: each.load.running,
    ),
)
"""The numbers of now in each engine: a name, its meaning, and how it is read."""
COUNTERS: tuple[tuple[str, str, Callable[[ReplicaReading], int]], ...] = (
    (
        "recompiles",
        "Compilations after the first answers.",
        lambda each: each.recompiles,
    ),
    (
        "staged_bytes",
        "Bytes read or copied for weights that were staged; shared leaves are not read.",
        lambda each: each.staged_bytes,
    ),
)
"""The numbers that only grow for as long as an engine lives."""


def _of_replicas(replicas: Sequence[ReplicaReading]) -> Iterator[Metric]:
    """Yield the metrics of each engine, by its index."""
    of = {str(index): each for index, each in enumerate(replicas)}
    for name, text, number in GAUGES:
        gauge = GaugeMetricFamily(f"hotreload_{name}", text, labels=["replica"])
        for index, each in of.items():
            gauge.add_metric([index], number(each))
        yield gauge
    for name, text, number in COUNTERS:
        counter = CounterMetricFamily(f"hotreload_{name}", text, labels=["replica"])
        for index, each in of.items():
            counter.add_metric([index], number(each))
        yield counter
    yield _kv_tokens(of)
    yield _weights(of)


def _kv_tokens(of: Mapping[str, ReplicaReading]) -> Metric:
    tokens = GaugeMetricFamily(
        "hotreload_kv_tokens",
        "Tokens of the KV pool, by what holds them; cached ones are free for requests. All 0 "
        "where the pool has several parts.",
        labels=["use", "replica"],
    )
    for index, each in of.items():
        held = (each.load.kv_requests, each.load.kv_prefixes, each.load.kv_free)
        for use, count in zip(KV_USES, held, strict=True):
            tokens.add_metric([use, index], count)
    return tokens


def _weights(of: Mapping[str, ReplicaReading]) -> Metric:
    held = GaugeMetricFamily(
        "hotreload_weights_bytes",
        "Bytes of weights on an engine's devices, by place; shared ones count once.",
        labels=["place", "replica"],
    )
    for index, each in of.items():
        for place, count in {**dict.fromkeys(WEIGHT_PLACES, 0), **each.weights}.items():
            held.add_metric([place, index], count)
    return held


def _answering_metrics(answering: Sequence[AnsweringGeneration]) -> Iterator[Metric]:
    """Count the generations that answer, and the requests that older ones still have to end."""
    yield GaugeMetricFamily(
        "hotreload_generations_answering",
        "Generations that answer requests now; 0 while booting.",
        len(answering),
    )
    yield GaugeMetricFamily(
        "hotreload_requests_on_previous",
        "Requests that older generations than the live one still answer.",
        sum(older.requests for older in answering[1:]),
    )
