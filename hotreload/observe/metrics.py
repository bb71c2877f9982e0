"""Every metric, fed by events and by plain numbers.

Knows no device: a scrape reads what was noted before, so a stuck engine is still seen.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload import __version__
from hotreload.errors import REJECTIONS, ConfigError
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    PhaseEntered,
    RevisionWanted,
    SourceScanned,
)
from hotreload.observe.fetched import Fetched
from hotreload.observe.labels import CODES, PLACES, ROUTES, SCAN_CAUSES
from hotreload.observe.page import Page
from hotreload.types import Attempt, GateState, Generation, Outcome, Phase, Revision

SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
QUICK = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
ANSWER = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
PAUSE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Plain numbers asked for at each scrape, on another thread: no device, no locks, no wait."""

    inside: Callable[[], int] = int
    held: Callable[[], int] = int
    recompiles: Callable[[], int] = int
    staged_bytes: Callable[[], int] = int
    """All bytes ever staged."""
    weights: Callable[[], Mapping[str, int]] = dict
    """Bytes held now, by place: live, previous, staged."""
    lost_at: Callable[[], float] = float
    """When an engine was last lost, in this life or an earlier one; 0 for never."""


class Metrics:
    """All metrics of one daemon, in a registry of its own."""

    def __init__(
        self,
        *,
        per_leaf: bool = True,
        readings: Readings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # 0.26 leaves it bare
        self._clock = clock
        self._live: Generation | None = None
        self._wanted: Revision | None = None
        self._unmet_since = 0.0
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(_Live(lambda: self._live, per_leaf))
        self._registry.register(_Now(readings or Readings()))
        self._fetched = Fetched()
        self._registry.register(self._fetched)
        self._make_build_info()
        self._make_reload_metrics()
        self._make_request_metrics()
        self._start_at_zero()

    # --- what there is -----------------------------------------------------------------

    def _make_build_info(self) -> None:
        info = Gauge(
            "hotreload_build_info",
            "Versions that run; always 1.",
            ["version", "jax", "sglang_jax"],
            registry=self._registry,
        )
        info.labels(__version__, _installed("jax"), _installed("sglang-jax")).set(1)

    def _make_reload_metrics(self) -> None:
        self._ready = self._gauge("ready", "1 while requests are answered, at once or held.")
        self._successful = self._gauge(
            "last_reload_successful",
            "1 when the last attempt (or the boot) went live, 0 when it failed.",
        )
        self._success_time = self._gauge(
            "last_reload_success_timestamp_seconds", "When weights last went live."
        )
        self._reloads = self._counter("reloads", "Attempts, by how they ended.", "outcome")
        self._wanted_since = self._gauge(
            "wanted_since_timestamp_seconds",
            "Since when what is wanted is not what is live; 0 while it is.",
        )
        self._phase_since = self._gauge(
            "phase_since_timestamp_seconds",
            "When the phase that runs began; 0 for others.",
            "phase",
        )
        self._rejections = self._counter("rejections", "Refused checkpoints, by why.", "reason")
        self._rollbacks = self._counter(
            "rollbacks", "Swaps that were undone because the probe failed."
        )
        self._phase_seconds = self._histogram(
            "phase_seconds", "How long the phases of attempts took.", SLOW, "phase"
        )
        self._pause_seconds = self._histogram(
            "pause_seconds", "How long arrivals were held for an attempt.", PAUSE
        )
        self._swap_seconds = self._histogram("swap_seconds", "The exchange of weights.", QUICK)
        self._leaves_changed = self._gauge(
            "leaves_changed", "Leaves that differ between the live generation and the one before."
        )
        self._scans = self._counter(
            "source_scans", "Looks at the source, by what caused them.", "cause"
        )
        self._scan_time = self._gauge(
            "source_last_scan_timestamp_seconds", "When a look at the source last worked."
        )

    def _make_request_metrics(self) -> None:
        self._requests = self._counter(
            "requests", "Requests that ended; 499 is a client that went first.", "route", "code"
        )
        self._request_seconds = self._histogram(
            "request_seconds", "From the request to the end of its answer.", ANSWER, "route"
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From a streamed request to its first token.", ANSWER
        )
        self._tokens = self._counter("tokens", "Tokens generated for clients.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hotreload_{name}_total", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"hotreload_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        full = f"hotreload_{name}"
        return Histogram(full, text, labels, buckets=buckets, registry=self._registry)

    def _start_at_zero(self) -> None:
        """A series that is born at 1 hides its first increase from every rate()."""
        for outcome in Outcome:
            self._reloads.labels(outcome.value)
        for reason in REJECTIONS:
            self._rejections.labels(reason)
        for phase in Phase:
            self._phase_seconds.labels(phase.value)
            self._phase_since.labels(phase.value)
        for cause in SCAN_CAUSES:
            self._scans.labels(cause)
        for route in ROUTES:
            self._request_seconds.labels(route)
            for code in CODES:
                self._requests.labels(route, code)

    # --- what happens ------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Count what happened."""
        self._fetched.observe(event)
        match event:
            case AttemptFinished(attempt):
                self._attempt_finished(attempt)
            case GenerationLive(generation):
                self._went_live(generation)
            case RevisionWanted(revision):
                self._wanted = revision
                self._note_unmet()
            case PhaseEntered(_, entered):
                for phase in Phase:
                    began = self._clock() if phase is entered else 0
                    self._phase_since.labels(phase.value).set(began)
            case GateChanged(state):
                self._ready.set(state is not GateState.SEALED)
            case SourceScanned(cause, error):
                self._scans.labels(cause).inc()
                if error is None:
                    self._scan_time.set(self._clock())

    def _attempt_finished(self, attempt: Attempt) -> None:
        self._reloads.labels(attempt.outcome.value).inc()
        self._rollbacks.inc(attempt.rolled_back)
        if attempt.outcome is Outcome.REJECTED and attempt.reason:
            self._rejections.labels(attempt.reason.code).inc()
        if attempt.outcome is not Outcome.SUPERSEDED:  # that says nothing of the checkpoint
            self._successful.set(attempt.outcome is Outcome.LIVE)
        if attempt.outcome is Outcome.LIVE:
            self._success_time.set(attempt.finished_at)
        self._note_times(attempt)

    def _note_times(self, attempt: Attempt) -> None:
        for phase, seconds in attempt.phases.items():
            self._phase_seconds.labels(phase.value).observe(seconds)
        if Phase.SWAPPING in attempt.phases:
            self._swap_seconds.observe(attempt.phases[Phase.SWAPPING])
        if attempt.pause_seconds > 0:
            self._pause_seconds.observe(attempt.pause_seconds)

    def _went_live(self, generation: Generation) -> None:
        before, self._live = self._live, generation
        if before is None:  # the boot; reloads are judged by their attempts
            self._successful.set(1)
            self._success_time.set(self._clock())
        else:
            self._leaves_changed.set(_changed(before.leaves, generation.leaves))
        self._note_unmet()

    def _note_unmet(self) -> None:
        """The first unmet wish counts: a newer one does not make what is live any younger."""
        is_met = not (self._wanted and self._live) or self._wanted == self._live.revision
        self._unmet_since = 0.0 if is_met else self._unmet_since or self._clock()
        self._wanted_since.set(self._unmet_since)

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count an answered request; unknown routes share one label."""
        known = route if route in ROUTES else "other"
        self._requests.labels(known, code).inc()
        self._request_seconds.labels(known).observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Note how long a stream's first token took."""
        self._first_token.observe(seconds)

    def tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._tokens.inc(count)

    # --- the page ----------------------------------------------------------------------

    def render(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self._registry)

    def serve(self, address: str) -> Page:
        """Serve the page on a port of its own; ConfigError when it cannot be had."""
        try:
            return Page(address, self.render)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"[metrics] address: cannot listen on {address}: {error}; choose another "
                "host:port, or '' to export metrics on the unix socket alone"
            ) from error


def _changed(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    return sum(before.get(leaf) != now.get(leaf) for leaf in before.keys() | now.keys())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class _Live(Collector):
    """What is live, all from one generation: a scrape in mid-swap never mixes two."""

    def __init__(self, live: Callable[[], Generation | None], per_leaf: bool) -> None:
        self._live = live
        self._per_leaf = per_leaf

    def collect(self) -> Iterator[Metric]:
        live = self._live()
        labels = ["generation", "revision", "label", "fingerprint"]
        info = GaugeMetricFamily("hotreload_live_info", "What answers; always 1.", labels=labels)
        number = GaugeMetricFamily("hotreload_generation", "The number of what answers.")
        number.add_metric([], live.number if live else 0)
        if live is not None:
            said = [str(live.number), live.revision.id, live.revision.label, live.fingerprint]
            info.add_metric(said, 1)
        yield info
        yield number
        if self._per_leaf:
            yield self._checksums(live)

    def _checksums(self, live: Generation | None) -> Metric:
        sums = GaugeMetricFamily(
            "hotreload_leaf_checksum", "Each live leaf's checksum, at most 2^53.", labels=["leaf"]
        )
        for leaf, checksum in live.leaves.items() if live else ():
            sums.add_metric([leaf], checksum)
        return sums


class _Now(Collector):
    """Numbers that others keep."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        now = self._readings
        yield GaugeMetricFamily("hotreload_requests_inside", "Being answered.", now.inside())
        yield GaugeMetricFamily("hotreload_requests_held", "Waiting for a swap.", now.held())
        yield CounterMetricFamily(
            "hotreload_recompiles", "Compilations after the first answers.", now.recompiles()
        )
        yield CounterMetricFamily("hotreload_staged_bytes", "Bytes staged.", now.staged_bytes())
        yield GaugeMetricFamily(
            "hotreload_engine_lost_timestamp_seconds",
            "When an engine was last lost, also before a restart; 0 for never.",
            now.lost_at(),
        )
        held = GaugeMetricFamily(
            "hotreload_weights_bytes", "Bytes of weights held, by place.", labels=["place"]
        )
        for place, count in {**dict.fromkeys(PLACES, 0), **now.weights()}.items():
            held.add_metric([place], count)
        yield held
