"""The metrics of what the picture holds: engines, weights, folders passed over, troubles."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.errors import PASSED_OVER
from hotreload.observe.named import shortened
from hotreload.picture.integrity import Integrity, Trust
from hotreload.picture.picture import Picture
from hotreload.picture.replicas import ReplicasNow
from hotreload.picture.surroundings import PassedOverNow, TroublesNow
from hotreload.troubles import TROUBLES


class Pictured(Collector):
    """Reads the picture at each scrape; every metric is there from the start."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from _replicas(self._picture.replicas)
        yield from _passed_over(self._picture.passed_over)
        yield from _integrity(self._picture.integrity)
        yield from _troubles(self._picture.troubles)


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
        "The number of the generation that is live in an engine; 0 while it does not serve.",
        labels=["replica"],
    )
    restarts = CounterMetricFamily(
        "hotreload_replica_restarts",
        "How often an engine that was lost was started again, beside the others.",
        labels=["replica"],
    )
    for index, each in enumerate(replicas.all):
        live = each.live  # the loop may change it meanwhile
        number.add_metric([str(index)], live.number if live else 0)
        restarts.add_metric([str(index)], each.restarts)
    yield number
    yield restarts


def _integrity(integrity: Integrity) -> Iterator[Metric]:
    def told(name: str, text: str, number: Callable[[Trust], float]) -> Metric:
        family = GaugeMetricFamily(f"hotreload_{name}", text, labels=["replica"])
        for index, each in enumerate(integrity.all):
            family.add_metric([str(index)], number(each))
        return family

    yield told(
        "loader_trusted",
        "1; 0 once our own loader was switched off, because upstream's made other weights.",
        lambda each: each.distrust is None,
    )
    yield told(
        "live_drifted",
        "1 while leaves that answer are no longer what went live ([checks] verify_live_every).",
        lambda each: each.drift is not None,
    )
    yield told(
        "live_verified_timestamp_seconds",
        "When the live weights were last computed anew and found whole; 0 for never.",
        lambda each: each.verified_at,
    )


def _passed_over(folders: PassedOverNow) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "hotreload_source_passed_over",
        "Folders that were probably meant as newer checkpoints and are passed over, by reason.",
        labels=["reason"],
    )
    for reason, count in {**dict.fromkeys(PASSED_OVER, 0), **folders.counts}.items():
        gauge.add_metric([reason], count)
    yield gauge
    info = GaugeMetricFamily(
        "hotreload_source_passed_over_info",
        "The newest folder that is passed over for a reason, and the beginning of what to do "
        "about it; always 1.",
        labels=["label", "reason", "message"],
    )
    for code, folder in folders.newest.items():
        info.add_metric([shortened(folder.label), code, shortened(folder.reason.message)], 1)
    yield info


def _troubles(troubles: TroublesNow) -> Iterator[Metric]:
    standing = troubles.standing
    gauge = GaugeMetricFamily(
        "hotreload_trouble",
        "1 while something is wrong that somebody must mend, by its code; else 0.",
        labels=["code"],
    )
    for code in TROUBLES:
        gauge.add_metric([code], code in standing)
    yield gauge
    info = GaugeMetricFamily(
        "hotreload_trouble_info",
        "What is wrong, and the beginning of what to do about it; always 1.",
        labels=["code", "message", "todo"],
    )
    for code, told in standing.items():
        info.add_metric([code, shortened(told.message or ""), shortened(told.todo)], 1)
    yield info
