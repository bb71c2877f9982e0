"""The kernel's metrics, fed by events and by plain numbers; features' are in their `report.py`.

A scrape reads what was noted before and asks no device, so it works while the engine is stuck.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass

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

from hotreload import __version__, events
from hotreload.attempts import REJECTIONS, Attempt
from hotreload.facts.upstream import version_of
from hotreload.observe.metrics_page import Fresh
from hotreload.observe.readings import left_out, list_families
from hotreload.picture.picture import Picture
from hotreload.types import Generation, Outcome, Phase

log = logging.getLogger("hotreload.metrics")

LONG_TIMES = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SWAP_TIMES = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
ANSWER_TIMES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LEAVES_LEFT_OUT = (
    "nothing, if you do not compare leaves by Prometheus; otherwise raise [metrics] max_leaves: "
    "each leaf makes the page about 100 bytes longer, and Prometheus keeps a series for it"
)
PAUSE_TIMES = (0, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


OTHER_ROUTES = "other"
"""The label of requests for an unknown path."""
STATUS_CODES = (200, 400, 500, 503)
"""Exported at 0 for each route from the start; others appear when they first happen."""
SCAN_CAUSES = ("start", "event", "rescan", "overflow", "request", "signal", "webhook")


GAUGES = {
    "ready": "1 while requests are answered, at once or after a swap; 0 otherwise.",
    "last_reload_successful": "1 when the last attempt (or the boot) went live, 0 when it failed.",
    "last_reload_success_timestamp_seconds": "When weights last went live.",
    "expected_every_seconds": "[metrics] expect_every; 0 where it is not set.",
    "wanted_since_timestamp_seconds": (
        "Since when the wanted revision is not the live one; 0 while it is."
    ),
    "phase_since_timestamp_seconds": "When the current phase began; 0 for every other phase.",
    "leaves_changed": "Leaves that differ between the live generation and the one before.",
    "source_last_scan_timestamp_seconds": "When a look at the source last worked.",
    "state_saved": "1 while the state that must survive a restart is on disk, else 0.",
}
COUNTERS = {
    "reloads": "Attempts, by how they ended.",
    "rejections": "Rejected checkpoints, by reason.",
    "rollbacks": "Swaps that were undone because the probe rejected the new weights.",
    "source_scans": "Looks at the source, by what caused them.",
    "socket_rebinds": "How often the unix socket was removed and bound again.",
    "requests": (
        "Requests that ended, by status code: a broken stream by the code of its problem, one "
        "cut short for a swap or a stop as 503, one whose client left as 499."
    ),
    "answers_withheld": "Answers withheld because the weights made NaN.",
}
TIMES = {
    "phase_seconds": ("How long each phase of an attempt took.", LONG_TIMES),
    "pause_seconds": ("How long an attempt held arriving requests; 0 by overlap.", PAUSE_TIMES),
    "swap_seconds": ("How long the exchange of weights took; by overlap: the flip.", SWAP_TIMES),
    "request_seconds": ("Time from a request to the end of its answer.", ANSWER_TIMES),
    "time_to_first_token_seconds": (
        "Time from a streamed request to its first token.",
        ANSWER_TIMES,
    ),
}
"""Histograms: the words, and the buckets."""
LABELS = {
    "phase_since_timestamp_seconds": ("phase",),
    "reloads": ("outcome",),
    "rejections": ("reason",),
    "source_scans": ("cause",),
    "requests": ("route", "code"),
    "phase_seconds": ("phase",),
    "request_seconds": ("route",),
}
"""The labels of those metrics that have some."""


class _Read(Collector):
    """The metrics that are read at each scrape."""

    def __init__(self, picture: Picture, max_leaves: int) -> None:
        self._picture, self._max_leaves = picture, max_leaves

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        for told in list_families(self._picture, self._max_leaves):
            make = CounterMetricFamily if told.kind == "counter" else GaugeMetricFamily
            family = make(told.name, told.words, labels=told.labels)
            for labels, value in told.series:
                family.add_metric(labels, value)
            yield family


class _Tokens:
    """The count of generated tokens: each token of each stream adds to it on the event loop."""

    total = 0

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield CounterMetricFamily("hotreload_tokens", "Tokens generated for clients.", self.total)


@dataclass(eq=False)
class Metrics:
    """All metrics of one daemon, in a registry of its own."""

    picture: Picture
    _: KW_ONLY
    max_leaves: int = 1000
    """The number of leaves whose checksum is exported; 0 for none."""
    expect_every: float | None = None
    """In how many seconds something new is expected to go live."""
    routes: Collection[str] = ()
    """Routes that are exported from the start."""
    later_routes: Collection[str] = ()
    """Routes that are exported once they are first asked; all others count as one."""
    reasons: Collection[str] = ()
    """The codes of features' refusals."""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # 0.26 leaves it bare
        self._live: Generation | None = None
        """The generation that was live when we last looked."""
        self._unmet_since = 0.0
        self._refused_at_start: set[str] = set()
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._known_routes = frozenset((*self.routes, *self.later_routes))
        self._fresh = Fresh(self.render)
        self._registry.register(_Read(self.picture, self.max_leaves))
        info = Gauge(
            "hotreload_build_info",
            "Versions of hotreload, jax and sglang-jax that run; always 1.",
            ["version", "jax", "sglang_jax"],
            registry=registry,
        )
        info.labels(__version__, version_of("jax"), version_of("sglang-jax")).set(1)
        self._gauges = {
            name: Gauge(f"hotreload_{name}", text, LABELS.get(name, ()), registry=registry)
            for name, text in GAUGES.items()
        }
        self._counters = {
            name: Counter(f"hotreload_{name}", text, LABELS.get(name, ()), registry=registry)
            for name, text in COUNTERS.items()
        }
        self._times = {
            name: Histogram(
                f"hotreload_{name}", text, LABELS.get(name, ()), registry=registry, buckets=buckets
            )
            for name, (text, buckets) in TIMES.items()
        }
        self._gauges["expected_every_seconds"].set(self.expect_every or 0)
        self._gauges["state_saved"].set(1)
        self._tokens = _Tokens()
        self._registry.register(self._tokens)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Export at 0: a series that is born at 1 hides its first increase from every rate()."""
        for outcome in set(Outcome) - {Outcome.PASSED}:  # which only dry runs have
            self._counters["reloads"].labels(outcome.value)
        for reason in (*REJECTIONS, *self.reasons):
            self._counters["rejections"].labels(reason)
        for phase in Phase:
            self._times["phase_seconds"].labels(phase.value)
            self._gauges["phase_since_timestamp_seconds"].labels(phase.value)
        for cause in SCAN_CAUSES:
            self._counters["source_scans"].labels(cause)
        for route in (*self.routes, OTHER_ROUTES):
            self._times["request_seconds"].labels(route)
            for code in STATUS_CODES:
                self._counters["requests"].labels(route, code)

    # --- what happens ------------------------------------------------------------------

    def observe(self, event: events.Event) -> None:
        """Count what happened; the picture has it already."""
        before, self._live = self._live, self.picture.live
        if self._live is not None and self._live != before:
            self._went_live(before, self._live)
        self._gauges["ready"].set(self.picture.replicas.serving_count > 0)
        match event:
            case events.AttemptFinished(attempt):
                self._attempt_finished(attempt)
            case events.RevisionWanted(revision):
                self._note_unmet()
                if revision.id in self._refused_at_start:  # nobody tries it again
                    self._gauges["last_reload_successful"].set(0)
            case events.PhaseEntered(_, entered) if self._live is not None:
                # Not in a start: the first answer compiles, which may take long and hangs nobody.
                for phase in Phase:
                    began = self.clock() if phase is entered else 0
                    self._gauges["phase_since_timestamp_seconds"].labels(phase.value).set(began)
            case events.AnswersWithheld(_, answers):
                self._counters["answers_withheld"].inc(answers)
            case events.SocketBoundAnew():
                self._counters["socket_rebinds"].inc()
            case events.SourceScanned(cause, error):
                self._counters["source_scans"].labels(cause).inc()
                if error is None:
                    self._gauges["source_last_scan_timestamp_seconds"].set(self.clock())
            case events.StateSaved(unsaved):
                self._gauges["state_saved"].set(unsaved is None)

    def _attempt_finished(self, attempt: Attempt) -> None:
        self._counters["reloads"].labels(attempt.outcome.value).inc()
        self._counters["rollbacks"].inc(attempt.rolled_back)
        if attempt.outcome is Outcome.REJECTED and attempt.reason:
            self._counters["rejections"].labels(attempt.reason.code).inc()
            if attempt.is_of_a_start:
                self._refused_at_start.add(attempt.revision.id)
        if attempt.outcome is not Outcome.SUPERSEDED:  # says nothing of the checkpoint
            self._gauges["last_reload_successful"].set(attempt.outcome is Outcome.LIVE)
        if attempt.outcome is Outcome.LIVE:
            self._gauges["last_reload_success_timestamp_seconds"].set(attempt.finished_at)
        self._note_times(attempt)

    def _note_times(self, attempt: Attempt) -> None:
        for phase, seconds in attempt.phases.items():
            self._times["phase_seconds"].labels(phase.value).observe(seconds)
        if Phase.SWAPPING in attempt.phases:
            self._times["swap_seconds"].observe(attempt.phases[Phase.SWAPPING])
        if attempt.pause_seconds > 0 or Phase.SWAPPING in attempt.phases:
            self._times["pause_seconds"].observe(attempt.pause_seconds)

    def _went_live(self, before: Generation | None, live: Generation) -> None:
        if before is None:  # the boot; reloads are judged by their attempts
            self._gauges["last_reload_successful"].set(1)
            self._gauges["last_reload_success_timestamp_seconds"].set(self.clock())
            self._tell_of_leaves(live)
        else:
            self._gauges["leaves_changed"].set(_count_changed(before.leaves, live.leaves))
        self._note_unmet()

    def _tell_of_leaves(self, live: Generation) -> None:
        if beyond := left_out(live, self.max_leaves):
            told = {"exported": self.max_leaves, "left_out": beyond}
            log.warning("metrics.leaves_left_out", extra={**told, "todo": LEAVES_LEFT_OUT})

    def _note_unmet(self) -> None:
        """Count from the first unmet wish: a newer one does not make the live weights younger."""
        live, wanted = self._live, self.picture.wishes.wanted
        is_met = not (wanted and live) or wanted == live.revision
        self._unmet_since = 0.0 if is_met else self._unmet_since or self.clock()
        self._gauges["wanted_since_timestamp_seconds"].set(self._unmet_since)

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count an answered request; unknown routes share one label."""
        known = route if route in self._known_routes else OTHER_ROUTES
        self._counters["requests"].labels(known, code).inc()
        self._times["request_seconds"].labels(known).observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Note how long a stream's first token took."""
        self._times["time_to_first_token_seconds"].observe(seconds)

    def tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._tokens.total += count

    # --- the page ----------------------------------------------------------------------

    def render(self) -> bytes:
        """Return the page that Prometheus reads, made now."""
        return generate_latest(self._registry)

    def latest(self) -> Future[bytes]:
        """Return the page, at most a second old, for a scrape on any thread."""
        return self._fresh.latest()


def _count_changed(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    return sum(before.get(leaf) != now.get(leaf) for leaf in before.keys() | now.keys())
