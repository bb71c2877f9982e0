"""Reports how many notices were posted, and the last error."""

from collections.abc import Iterator
from dataclasses import dataclass

from hotreload.picture.report import Family, FeatureReport, counter, gauge, shorten


@dataclass(slots=True)
class NoticeCounts:
    """The notices so far, of all receivers."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    last_error: tuple[str, str] | None = None
    """The receiver's host, and what was wrong."""


class NotifyReport(FeatureReport):
    """Reports notices."""

    def __init__(self, counts: NoticeCounts) -> None:
        self._counts = counts

    def families(self) -> Iterator[Family]:
        """Return how many were posted, and the last error."""
        counts = self._counts
        numbers = {"sent": counts.sent, "failed": counts.failed, "dropped": counts.dropped}
        yield counter("notices", "Posts of [[notify]], by what became of each.", numbers, "result")
        last = counts.last_error
        errors = {(last[0], shorten(last[1])): 1.0} if last else {("", ""): 0.0}
        words = "The last error of a post of [[notify]]; 0 before one."
        yield gauge("notice_error_info", words, errors, "receiver", "message")
