"""Metrics that are read at each scrape instead of counted before, so they cannot lag behind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.observe.labels import KV_USES, PLACES
from hotreload.types import Answering, Attempt, EngineLoad, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Functions that each scrape calls, on another thread: none may ask a device, lock or wait."""

    inside: Callable[[], int] = int
    held: Callable[[], int] = int
    answering: Callable[[], Sequence[Answering]] = tuple
    """Who answers requests, and how many: the live generation first."""
    load: Callable[[], EngineLoad] = EngineLoad
    recompiles: Callable[[], int] = int
    staged_bytes: Callable[[], int] = int
    """All bytes ever read for weights."""
    weights: Callable[[], Mapping[str, int]] = dict
    """Bytes held on the device now, by place: live, previous, staged."""
    lost_at: Callable[[], float] = float
    """When an engine was last lost, in this life or an earlier one; 0 for never."""
    overruled: Callable[[], bool] = bool
    """Whether an operator made another revision live than the one the source wishes."""
    failed: Callable[[], Attempt | None] = lambda: None
    """The attempt that failed last, in this life or an earlier one."""
    new_at: Callable[[], float] = float
    """When weights that were never live before last went live; 0 for never."""


class Live(Collector):
    """The metrics of the live generation; a scrape in mid-swap never mixes two generations."""

    def __init__(self, live: Callable[[], Generation | None], max_leaves: int) -> None:
        """`max_leaves` is of how many leaves the checksum is exported at most."""
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
            "Live leaves whose checksum is not exported: those beyond [metrics] max_leaves.",
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
    """How many leaves are too many; none where no checksum is asked for."""
    return max(0, len(live.leaves) - max_leaves) if live and max_leaves else 0


class Now(Collector):
    """The metrics of the `Readings`."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        now = self._readings
        yield GaugeMetricFamily(
            "hotreload_requests_inside", "Requests that are being answered now.", now.inside()
        )
        yield GaugeMetricFamily(
            "hotreload_requests_held",
            "Requests that wait at the closed gate now: for a swap where swaps drain, or for the "
            "cleaning after NaN.",
            now.held(),
        )
        yield from _answering(now.answering())
        yield from _load(now.load())
        yield CounterMetricFamily(
            "hotreload_recompiles", "Compilations after the first answers.", now.recompiles()
        )
        yield CounterMetricFamily(
            "hotreload_staged_bytes",
            "Bytes read for weights that were staged; those of shared leaves are not read.",
            now.staged_bytes(),
        )
        yield GaugeMetricFamily(
            "hotreload_engine_lost_timestamp_seconds",
            "When an engine was last lost, also before a restart; 0 for never.",
            now.lost_at(),
        )
        yield GaugeMetricFamily(
            "hotreload_overruled",
            "1 while an operator's choice is live instead of the revision the source wishes.",
            now.overruled(),
        )
        yield GaugeMetricFamily(
            "hotreload_last_new_timestamp_seconds",
            "When weights that were never live before last went live, also before a restart; 0 for "
            "never. A rollback, noise and a start are nothing new.",
            now.new_at(),
        )
        held = GaugeMetricFamily(
            "hotreload_weights_bytes", "Bytes of weights on the device, by place.", labels=["place"]
        )
        for place, count in {**dict.fromkeys(PLACES, 0), **now.weights()}.items():
            held.add_metric([place], count)
        yield held


def _load(load: EngineLoad) -> Iterator[Metric]:
    """How busy the engine is."""
    yield GaugeMetricFamily(
        "hotreload_engine_waiting",
        "Requests in the engine that wait for a place in a batch.",
        load.waiting,
    )
    yield GaugeMetricFamily(
        "hotreload_engine_running", "Requests in the engine that make tokens.", load.running
    )
    tokens = GaugeMetricFamily(
        "hotreload_kv_tokens",
        "Tokens of the KV pool that serves, by what holds them; cached prefixes are given back "
        "when requests need them. All 0 where the pool has several parts.",
        labels=["use"],
    )
    held = (load.kv_requests, load.kv_prefixes, load.kv_free)
    for use, count in zip(KV_USES, held, strict=True):
        tokens.add_metric([use], count)
    yield tokens


def _answering(answering: Sequence[Answering]) -> Iterator[Metric]:
    """How many generations answer, and what the older ones still have to do."""
    yield GaugeMetricFamily(
        "hotreload_generations_answering",
        "Generations that answer requests now: 1, more while older ones fade out, 0 while booting.",
        len(answering),
    )
    yield GaugeMetricFamily(
        "hotreload_requests_on_previous",
        "Requests that older generations than the live one still answer.",
        sum(older.requests for older in answering[1:]),
    )
