"""Names for alerts: the wanted revision, and the checkpoint that failed last with its reason."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hotreload.core.ledger import Ledger
from hotreload.picture.picture import Picture
from hotreload.types import Attempt, Outcome

FAILURES = {Outcome.REJECTED, Outcome.POSTPONED, Outcome.LOST}
LONGEST_MESSAGE = 200
"""Characters of a reason; the history has all of it."""


class Named(Collector):
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
            "The attempt that failed last, also before a restart: the checkpoint, how it ended and "
            "the beginning of why; always 1.",
            labels=["revision", "label", "outcome", "reason", "message"],
        )
        if (attempt := last_failure(self._picture.ledger)) is not None:
            failure.add_metric(_said_of(attempt), 1)
        yield failure


def last_failure(ledger: Ledger) -> Attempt | None:
    """The attempt that failed last, in this life or an earlier one."""
    attempts = tuple(ledger.history)  # whole at once: the loop changes it meanwhile
    failed = (each for each in attempts if each.outcome in FAILURES and not each.dry_run)
    return next(failed, None)


def _said_of(attempt: Attempt) -> list[str]:
    revision, reason = attempt.revision, attempt.reason
    code, message = (reason.code, reason.message) if reason else ("", "")
    return [revision.id, revision.label, attempt.outcome.value, code, shortened(message)]


def shortened(message: str) -> str:
    """The beginning of a message, in one line of text whatever it names, for a label."""
    line = " ".join(message.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"
