"""Reports how many spans were sent, and how many were lost."""

from collections.abc import Iterator
from dataclasses import dataclass

from hotreload.picture.report import Family, FeatureReport, counter


@dataclass(slots=True)
class SpanCounts:
    """The spans so far; the exporter's thread alone counts."""

    sent: int = 0
    lost: int = 0


class OtelReport(FeatureReport):
    """Reports spans."""

    def __init__(self, counts: SpanCounts) -> None:
        self._counts = counts

    def families(self) -> Iterator[Family]:
        """Return how many spans the collector took, and how many it did not."""
        numbers = {"sent": self._counts.sent, "lost": self._counts.lost}
        words = "Spans that the collector of [otel] endpoint took, or did not."
        yield counter("spans", words, numbers, "result")
