"""Reports how many spans were sent, and how many were lost."""

from collections.abc import Iterator
from dataclasses import dataclass

from hotreload.picture.report import Family, FeatureReport, counter


@dataclass(eq=False)
class OtelReport(FeatureReport):
    """The spans so far, which the exporter's thread counts."""

    sent: int = 0
    lost: int = 0

    def families(self) -> Iterator[Family]:
        """Return how many spans the collector took, and how many it did not."""
        numbers = {"sent": self.sent, "lost": self.lost}
        words = "Spans that the collector of [otel] endpoint took, or did not."
        yield counter("spans", words, numbers, "result")
