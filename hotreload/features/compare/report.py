"""Reports the recorded requests, and the last comparison."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hotreload.attempts import Attempt
from hotreload.events import AttemptEnd, Event
from hotreload.features.compare.evidence import LiveCompared
from hotreload.features.compare.replay import HearingNow
from hotreload.json_fields import Fields
from hotreload.picture.report import Family, FeatureReport, gauge
from hotreload.picture.rows import row
from hotreload.picture.words import count_of

COMPARED_FIGURES = {
    "agreement": "Part of an answer that is the same up to the first different token",
    "length_ratio": "Length of answers, over the live weights'",
    "mean_kl": "Mean divergence from the live weights, in nats a token",
    "noise_kl": "The same of the live weights, asked twice",
    "same_top": "Share of places where both expect the same token",
    "perplexity_ratio": "Perplexity of plain texts, over the live weights'",
    "seconds": "Time that the comparison took",
    "heard": "Requests of clients that it was compared by",
    "heard_same_top": "Share of places of their answers where both expect the same token",
}
"""The figures of a comparison that have a metric each."""
ACCURACY_FIGURES = {
    "accuracy": "Share of right answers to the corpus",
    "live_accuracy": "The same of the weights that were live",
}
"""Those of answers that were expected."""


class CompareReport(FeatureReport):
    """Reports comparisons."""

    def __init__(
        self, recorded: Callable[[], HearingNow | None], history: Iterable[Attempt] = ()
    ) -> None:
        """`recorded` returns figures of the recorded requests, None if none is recorded.

        `history` has the attempts of earlier lives, the newest first.
        """
        self._recorded = recorded
        self._last = next(filter(_was_compared, history), None)
        """The last attempt in which new weights were compared with those before them."""
        self._went_live: Attempt | None = None
        """The attempt that went live last: it may be compared yet."""

    def observe(self, event: Event) -> None:
        """Take in an attempt that ended, a dry run, too, and what was found later."""
        match event:
            case AttemptEnd(attempt):
                if attempt.generation is not None:
                    self._went_live = attempt
                if _was_compared(attempt):
                    self._last = attempt
            case LiveCompared(number, found=found) if found.facts["behaviour"]:
                if self._went_live is not None and self._went_live.generation == number:
                    self._last = self._went_live.with_evidence(found)

    def fields(self) -> Fields:
        """Return figures of the recorded requests; None if none is recorded."""
        return {"heard": (now := self._recorded()) and asdict(now)}

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its row."""
        heard = status.get("heard")
        return [row("heard", "\n".join(_words(heard)))] if heard else []

    def families(self) -> Iterator[Family]:
        """Return the figures of the last comparison."""
        found = self._last.facts["behaviour"] if self._last else {}
        right = found.get("right_answers")
        yield from _figures(found, COMPARED_FIGURES)
        yield from _figures(_accuracies(right) if right else {}, ACCURACY_FIGURES)
        yield gauge(
            "behaviour_info",
            "The checkpoint of the last comparison, its generation if it went live, else the "
            "reason; always 1.",
            {_labels(self._last): 1} if self._last else {},
            *("revision", "label", "generation", "outcome", "reason"),
        )


def _was_compared(attempt: Attempt) -> bool:
    return bool(attempt.facts.get("behaviour"))


def _labels(compared: Attempt) -> tuple[str, ...]:
    revision, number = compared.revision, compared.generation
    became = "" if number is None else str(number)
    why = compared.reason.code if compared.reason else ""
    return (revision.id, revision.label, became, compared.outcome.value, why)


def _accuracies(right: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the shares of right answers, of new and of live weights."""
    counts = {"accuracy": right["right"], "live_accuracy": right["live_right"]}
    return {name: count / right["expected"] for name, count in counts.items()}


def _figures(found: Mapping[str, Any], named: Mapping[str, str]) -> Iterator[Family]:
    for name, words in named.items():
        value = found.get(name)
        figure = math.nan if value is None else value
        yield gauge(f"behaviour_{name}", f"{words}; last comparison.", figure)


def _words(heard: Fields) -> Iterator[str]:
    """Say which requests are recorded to compare new weights by."""
    if heard["replay"]:
        kept = f"{heard['kept']} of the last {count_of(heard['replay'], 'request')}"
        yield f"{kept} kept in memory ([compare] replay)"
    if heard["mirror"]:
        share = f"{heard['mirror'] * 100:.3g} % of those that end while a checkpoint waits"
        now = f", {mirrored} now" if (mirrored := heard["mirrored"]) else ""
        yield f"{share}{now} ([compare] mirror)"
