"""Reports the live generation's bake, and how earlier ones ended."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from hotreload.attempts import Attempt
from hotreload.events import Event
from hotreload.features.bake.evidence import (
    CONVICTED_ANSWERS,
    Bake,
    BakeChanged,
    BakeOutcome,
    bake_fields,
)
from hotreload.features.bake.signals import Signal
from hotreload.json_fields import Fields
from hotreload.picture.report import Family, FeatureReport, WishVerdict, counter, gauge
from hotreload.picture.rows import row
from hotreload.picture.words import count_of, plain
from hotreload.types import Revision

ENDS = tuple(each for each in BakeOutcome if each not in (BakeOutcome.BAKING, BakeOutcome.HELD))


class BakeReport(FeatureReport):
    """Reports bakes."""

    troubles = (CONVICTED_ANSWERS,)

    def __init__(
        self, now: Callable[[], Bake | None], conviction: Callable[[], Bake | None]
    ) -> None:
        """`now` returns the live generation's bake, None without one.

        `conviction` returns the judgement on live weights that are being rolled back.
        """
        self._now, self._conviction = now, conviction
        self._ended: Mapping[BakeOutcome, int] = dict.fromkeys(ENDS, 0)

    def observe(self, event: Event) -> None:
        """Count how bakes end."""
        if isinstance(event, BakeChanged) and event.bake.outcome in self._ended:
            outcome = event.bake.outcome
            self._ended = {**self._ended, outcome: self._ended[outcome] + 1}

    def fields(self) -> Fields:
        """Return the bake that goes on; None where none does."""
        return {"bake": (now := self._now()) and bake_fields(now)}

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its row."""
        bake = status.get("bake")
        return [row("bake", "\n".join(_words(bake)), "wait")] if bake else []

    def objection_to(self, live: Revision) -> WishVerdict | None:
        """Object while it bakes, and while it is being left."""
        if self._now() is not None:
            return WishVerdict(BakeOutcome.BAKING.value, f"{live}: its bake is not over")
        if (conviction := self._conviction()) is not None:
            return WishVerdict(
                conviction.outcome.value, f"{live} is being left: {conviction.words}"
            )
        return None

    def gate_fields(self, last: Attempt | None) -> Fields:
        """Return the bake that goes on, or how that of the last attempt ended."""
        if (now := self._now() or self._conviction()) is not None:
            return {"bake": bake_fields(now)}
        return {"bake": last.facts.get("bake") if last else None}

    def families(self) -> Iterator[Family]:
        """Return the figures of the bake that goes on, and how many ended."""
        bake = self._now()
        words = "Since when a bake judges the live weights; 0 without one."
        yield gauge("bake_since_timestamp_seconds", words, bake.since if bake else 0)
        words = "Answers that the bake rests on: of the live weights, and of those before."
        answers = (bake.answers, bake.old_answers) if bake else (0, 0)
        yield gauge(
            "bake_answers", words, dict(zip(("new", "old"), answers, strict=True)), "weights"
        )
        words = "How many of these answers show a sign of bad weights."
        yield gauge("bake_signals", words, dict(_signs(bake)), "signal", "weights")
        words = "Bakes that ended, by how: convicted weights were left and are refused."
        ended = {outcome.value: count for outcome, count in self._ended.items()}
        yield counter("bakes", words, ended, "outcome")


def _signs(bake: Bake | None) -> Iterator[tuple[tuple[str, str], float]]:
    counts = (
        {each.signal: (each.answers, each.old_answers) for each in bake.signals} if bake else {}
    )
    for signal in Signal:
        new, old = counts.get(signal.value, (0, 0))
        yield (signal.value, "new"), new
        yield (signal.value, "old"), old


def _words(bake: Fields) -> Iterator[str]:
    """Say whose answers are compared, until when, and which signs were seen."""
    beside = f"{bake['old_answers']} of generation {bake['against']}"
    yield f"{count_of(bake['answers'], 'answer')} beside {beside}"
    yield f"until {bake['until']}"
    for each in bake["signals"]:
        old = f"before {each['old_answers']} of {bake['old_answers']}"
        yield f"{plain(each['signal'])}: {each['answers']} of {bake['answers']}, {old}"
