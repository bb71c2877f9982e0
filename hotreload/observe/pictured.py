"""The metrics of what the picture holds: engines, weights, folders, troubles, names, hosts."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.core.ledger import Ledger
from hotreload.errors import PASSED_OVER
from hotreload.picture.integrity import Integrity, Trust
from hotreload.picture.picture import Picture
from hotreload.picture.replicas import ReplicasNow
from hotreload.picture.report import Family
from hotreload.picture.surroundings import PassedOverNow, TroublesNow, WorkersNow
from hotreload.troubles import TROUBLES
from hotreload.types import Attempt, Outcome

FAILURES = {Outcome.REJECTED, Outcome.POSTPONED, Outcome.LOST}
LONGEST_MESSAGE = 200
"""Characters of a reason; the history has all of it."""


class PictureMetrics(Collector):
    """Reads the picture at each scrape; every metric is there from the start."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from _replicas(self._picture.replicas)
        yield from _workers(self._picture.workers)
        yield from _passed_over(self._picture.passed_over)
        yield from _integrity(self._picture.integrity)
        of_features = (code for each in self._picture.reports for code in each.troubles)
        yield from _troubles(self._picture.troubles, (*TROUBLES, *of_features))
        for report in self._picture.reports:
            yield from map(_family, report.families())


def _replicas(replicas: ReplicasNow) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "hotreload_replicas", "Engines that the daemon is to have.", len(replicas.all)
    )
    yield GaugeMetricFamily(
        "hotreload_replicas_serving",
        "Engines that answer requests, at once or after a swap.",
        replicas.serving,
    )
    number = GaugeMetricFamily(
        "hotreload_replica_generation",
        "The live generation of an engine; 0 while it does not serve.",
        labels=["replica"],
    )
    restarts = CounterMetricFamily(
        "hotreload_replica_restarts",
        "How often a lost engine was started again.",
        labels=["replica"],
    )
    warming = GaugeMetricFamily(
        "hotreload_sizes_to_compile",
        "Sizes of batches that an engine still compiles, beside its answers.",
        labels=["replica"],
    )
    for index, each in enumerate(replicas.all):
        done, total = each.warming or (0, 0)
        warming.add_metric([str(index)], total - done)
        live = each.live  # the loop may change it meanwhile
        number.add_metric([str(index)], live.number if live else 0)
        restarts.add_metric([str(index)], each.restarts)
    yield number
    yield restarts
    yield warming


def _workers(workers: WorkersNow) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "hotreload_workers",
        "Processes that answer HTTP beside the engine's own.",
        workers.serving,
    )
    yield CounterMetricFamily(
        "hotreload_workers_lost",
        "Such processes that ended or hung.",
        workers.lost,
    )


def _integrity(integrity: Integrity) -> Iterator[Metric]:
    def make_metric(name: str, text: str, number: Callable[[Trust], float]) -> Metric:
        family = GaugeMetricFamily(f"hotreload_{name}", text, labels=["replica"])
        for index, each in enumerate(integrity.all):
            family.add_metric([str(index)], number(each))
        return family

    yield make_metric(
        "loader_trusted",
        "1; 0 once our own loader was switched off, because upstream's made other weights.",
        lambda each: each.distrust is None,
    )
    yield make_metric(
        "live_drifted",
        "1 while leaves that answer are no longer what went live ([checks] verify_live_every).",
        lambda each: each.drift is not None,
    )
    yield make_metric(
        "live_verified_timestamp_seconds",
        "When the live weights were last found whole; 0 for never.",
        lambda each: each.verified_at,
    )


def _passed_over(folders: PassedOverNow) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "hotreload_source_passed_over",
        "Folders that look like newer checkpoints and are passed over, by reason.",
        labels=["reason"],
    )
    for reason, count in {**dict.fromkeys(PASSED_OVER, 0), **folders.counts}.items():
        gauge.add_metric([reason], count)
    yield gauge
    info = GaugeMetricFamily(
        "hotreload_source_passed_over_info",
        "The newest folder that is passed over, and the beginning of what to do; always 1.",
        labels=["label", "reason", "message"],
    )
    for code, folder in folders.newest.items():
        info.add_metric([shorten(folder.label), code, shorten(folder.reason.message)], 1)
    yield info


def _troubles(troubles: TroublesNow, codes: Sequence[str]) -> Iterator[Metric]:
    standing = troubles.current
    gauge = GaugeMetricFamily(
        "hotreload_trouble",
        "1 while this trouble stands, else 0.",
        labels=["code"],
    )
    for code in codes:
        gauge.add_metric([code], code in standing)
    yield gauge
    info = GaugeMetricFamily(
        "hotreload_trouble_info",
        "What is wrong, and the beginning of what to do; always 1.",
        labels=["code", "message", "todo"],
    )
    for code, told in standing.items():
        info.add_metric([code, shorten(told.message or ""), shorten(told.todo)], 1)
    yield info


def _family(told: Family) -> Metric:
    make = CounterMetricFamily if told.kind == "counter" else GaugeMetricFamily
    family = make(told.name, told.words, labels=told.labels)
    for labels, value in told.series:
        family.add_metric(labels, value)
    return family


class NameMetrics(Collector):
    """Series whose labels say it; each is there once at most, so they stay few."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Yield both; a family without a series while there is nothing to name."""
        wanted = GaugeMetricFamily(
            "hotreload_wanted_info",
            "The revision that is wanted, also when it is live; always 1.",
            labels=["revision", "label"],
        )
        if (wish := self._picture.wishes.wanted) is not None:
            wanted.add_metric([wish.id, wish.label], 1)
        yield wanted
        failure = GaugeMetricFamily(
            "hotreload_last_failure_info",
            "The last failed attempt, also before a restart: checkpoint, outcome, beginning of "
            "the reason; always 1.",
            labels=["revision", "label", "outcome", "reason", "message"],
        )
        if (attempt := last_failure(self._picture.ledger)) is not None:
            failure.add_metric(_said_of(attempt), 1)
        yield failure


def last_failure(ledger: Ledger) -> Attempt | None:
    """Find the attempt that failed last, in this life or an earlier one."""
    attempts = tuple(ledger.attempts)  # whole at once: the loop changes it meanwhile
    failed = (each for each in attempts if each.outcome in FAILURES and not each.dry_run)
    return next(failed, None)


def _said_of(attempt: Attempt) -> list[str]:
    revision, reason = attempt.revision, attempt.reason
    code, message = (reason.code, reason.message) if reason else ("", "")
    return [revision.id, revision.label, attempt.outcome.value, code, shorten(message)]


def shorten(message: str) -> str:
    """Return the beginning of a message, in one line of text whatever it names, for a label."""
    line = " ".join(message.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"


class RankMetrics(Collector):
    """The metrics of the ranks; one host alone is no rank."""

    def __init__(self, picture: Picture) -> None:
        self._rank, self._heard = picture.setup.rank, picture.readings.silences

    def collect(self) -> Iterator[Metric]:
        """Yield what there is to say of them."""
        rank = self._rank
        yield GaugeMetricFamily(
            "hotreload_ranks",
            "Hosts over which the engine lies ([engine] nnodes).",
            rank.of if rank else 1,
        )
        if rank is None:
            return
        yield GaugeMetricFamily(
            "hotreload_rank",
            "Which of several hosts this is; 0 decides and answers. No series with one host.",
            rank.own,
        )
        if not rank.follows:
            yield self._silences()

    def _silences(self) -> Metric:
        heard = GaugeMetricFamily(
            "hotreload_rank_heard_seconds",
            "On rank 0: seconds since each other rank's last sign of life; after 30 s the engine "
            "is lost.",
            labels=["rank"],
        )
        for rank, seconds in self._heard().items():
            heard.add_metric([str(rank)], seconds)
        return heard
