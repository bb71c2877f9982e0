"""The folders that the source passes over: counted, named in the status, and logged once each."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.errors import PASSED_OVER
from hotreload.events import Event, FoldersPassedOver
from hotreload.observe.named import shortened
from hotreload.types import PassedOver

_REMEMBERED = 1000


class PassedOverNow(Collector):
    """The folders that are passed over now, for the status and for a scrape."""

    def __init__(self) -> None:
        self._last = FoldersPassedOver((), {})

    def observe(self, event: Event) -> None:
        """Take in which folders are passed over from now on."""
        if isinstance(event, FoldersPassedOver):
            self._last = event

    def fields(self) -> dict[str, Any]:
        """Return the part of the status that names them."""
        return passed_over_fields(self._last)

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge, with every reason from the start."""
        gauge = GaugeMetricFamily(
            "hotreload_source_passed_over",
            "Folders that were probably meant as newer checkpoints and are passed over, by reason.",
            labels=["reason"],
        )
        for reason, count in {**dict.fromkeys(PASSED_OVER, 0), **self._last.counts}.items():
            gauge.add_metric([reason], count)
        yield gauge
        yield _newest(self._last)


def _newest(event: FoldersPassedOver) -> Metric:
    """The first folder named for each reason: they come newest first."""
    info = GaugeMetricFamily(
        "hotreload_source_passed_over_info",
        "The newest folder that is passed over for a reason, and the beginning of what to do "
        "about it; always 1.",
        labels=["label", "reason", "message"],
    )
    newest = {folder.reason.code: folder for folder in reversed(event.folders)}
    for code, folder in newest.items():
        info.add_metric([shortened(folder.label), code, shortened(folder.reason.message)], 1)
    return info


class NewlyPassedOver:
    """Picks folders not logged yet: each is logged once per reason, however often it is seen."""

    def __init__(self) -> None:
        self._told = OrderedDict[tuple[str, str], None]()

    def of(self, event: FoldersPassedOver) -> Iterator[Mapping[str, Any]]:
        """Yield the fields of a log line for each folder that is new."""
        for folder in event.folders:
            key = (folder.label, folder.reason.code)
            if key not in self._told:
                yield _folder_fields(folder)
            self._told[key] = None
            self._told.move_to_end(key)
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)


def passed_over_fields(event: FoldersPassedOver) -> dict[str, Any]:
    """Return the folders as the status and /events show them, and how many there are in all."""
    named = [_folder_fields(folder) for folder in event.folders]
    return {"passed_over": named, "passed_over_total": sum(event.counts.values())}


def _folder_fields(folder: PassedOver) -> dict[str, Any]:
    reason = folder.reason
    return {"label": folder.label, "code": reason.code, "reason": reason.message}
