"""The rule of a bake and its settings: from counts of answers to whether new weights are worse.

One test for all signals: new weights are convicted when the confidence sequence of a signal's share
lies above that of the old weights by more than is allowed. An answer that still runs counts for the
new weights on both sides: for them as a good one, for the old as a bad one. Else those that end
first, the empty ones, would be all that is known of new weights in their first seconds.

A confidence sequence is an interval that holds at every look at once, however often. By the mixture
of binomials over a beta of one half and one half, each share is kept that the answers so far do not
make too unlikely beside that mixture. By Ville's inequality the true share is ever left out with a
chance of at most `level`, so looking after every answer costs nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import lgamma, log, log1p
from typing import Literal

from hotreload.features.bake.evidence import SignalCount
from hotreload.features.bake.signals import SeenAnswer, Signal
from hotreload.setting import PartOfAll, Seconds, setting


@dataclass(frozen=True, slots=True)
class BakeSettings:
    """The judgement of new weights by their clients' answers, after they went live."""

    time: Seconds = setting(
        0.0,
        "How long clients' answers judge new weights; clearly worse ones are rolled back and "
        "refused (judge.md). 0: off.",
        live=True,
        example="5m",
        was="reload.bake",
    )
    max_time: Seconds = setting(
        1800.0, "The longest bake, with inconclusive = 'hold'.", live=True, was="reload.bake_max"
    )
    inconclusive: Literal["promote", "hold", "rollback"] = setting(
        "hold",
        "What to do if there are too few answers: promote with a mark, go on until there are "
        "enough, or roll back and refuse.",
        live=True,
        was="reload.bake_inconclusive",
    )
    allowed_increase: PartOfAll = setting(
        0.02,
        "How much more often answers may show a sign of bad weights: 0.02 is 2 more of 100. "
        "Errors may not increase.",
        live=True,
        was="reload.allowed_increase",
    )

    @property
    def longest(self) -> float:
        """Seconds that it lasts at most, where it goes on because there were too few answers."""
        return max(self.max_time, self.time)


RISK = 0.01
"""The chance that good weights are convicted, over all signals, both sides and every look."""
LEVEL = RISK / (2 * len(Signal))
MIN_ANSWERS = 50
"""The least answers of new weights by which they are judged, once these have ended."""
FIRST_ANSWERS = 10
FIRST_ERRORS = 5
"""The number of errors among the first answers that convicts at once."""
USUAL_ERRORS = 0.05
"""The share of errors from which on the first few answers of new weights say nothing."""
LONG_SHARE = 0.05
"""The share of the old weights' answers that count as long."""
HALVINGS = 50
"""Halvings of an interval: far finer than any number that is shown."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The shares that a count leaves possible."""

    low: float
    high: float


def interval(hits: int, answers: int, level: float) -> Interval:
    """Return the shares that this many hits among these answers leave possible."""
    if answers == 0:
        return Interval(0.0, 1.0)
    limit, seen = -log(level), hits / answers

    def is_left_out(share: float) -> bool:
        return _evidence(hits, answers, share) >= limit

    low = 0.0 if hits == 0 else _edge(is_left_out, 0.0, seen)
    high = 1.0 if hits == answers else _edge(is_left_out, 1.0, seen)
    return Interval(low, high)


def is_above(hits: int, answers: int, share: float, level: float) -> bool:
    """Return True if the whole interval lies above this share; costs less than the interval."""
    if answers == 0 or hits <= share * answers or share >= 1:
        return False
    return share <= 0 or _evidence(hits, answers, share) >= -log(level)


def _evidence(hits: int, answers: int, share: float) -> float:
    """Compute the logarithm of the evidence against a share."""
    misses = answers - hits
    mixture = lgamma(hits + 0.5) + lgamma(misses + 0.5) - lgamma(answers + 1) - 2 * lgamma(0.5)
    likelihood = (hits * log(share) if hits else 0.0) + (misses * log1p(-share) if misses else 0.0)
    return mixture - likelihood


def _edge(is_left_out: Callable[[float], bool], out: float, within: float) -> float:
    """Find the border between shares that are left out and others, by halving."""
    for _ in range(HALVINGS):
        middle = (out + within) / 2
        if is_left_out(middle):
            out = middle
        else:
            within = middle
    return out


@dataclass(slots=True, eq=False)
class SignalTally:
    """Counts of answers that have ended, and of the signals in them."""

    long_from: int | None = None
    """Answers of more tokens are long; None while the usual length is not known."""
    ended: int = 0
    hits: Counter[Signal] = field(default_factory=Counter)

    def add(self, seen: SeenAnswer) -> None:
        """Count one more answer."""
        self.ended += 1
        for signal in seen.signals:
            self.hits[signal] += 1
        if self.long_from is not None and seen.tokens > self.long_from:
            self.hits[Signal.LONG] += 1


@dataclass(frozen=True, slots=True)
class Sides:
    """The answers of new and of old weights, at a moment."""

    new: SignalTally
    old: SignalTally
    new_running: int = 0
    old_running: int = 0
    early_errors: int = 0
    """Errors among the first answers of the new weights."""
    allowed_increase: float = 0.02

    @property
    def answers(self) -> int:
        """Count of the new weights' answers, with those that still run."""
        return self.new.ended + self.new_running

    @property
    def old_answers(self) -> int:
        """The same of the old weights."""
        return self.old.ended + self.old_running

    def old_hits(self, signal: Signal) -> int:
        """Count a signal in the old weights' answers, as if all that still run end with it."""
        return self.old.hits[signal] + self.old_running

    def increase(self, signal: Signal) -> float:
        """Return the allowed increase of a signal's share; errors may not increase."""
        return 0.0 if signal is Signal.ERROR else self.allowed_increase

    def limit_for(self, signal: Signal) -> float:
        """Return the largest share of this signal that is allowed in the new weights' answers."""
        high = interval(self.old_hits(signal), self.old_answers, LEVEL).high
        return high + self.increase(signal)

    @property
    def signals(self) -> Iterator[Signal]:
        """The signals that both sides count."""
        return (each for each in Signal if each is not Signal.LONG or self.new.long_from)


def list_convicting(sides: Sides) -> list[Signal]:
    """List the signals that convict the new weights now; none while they may be good."""
    found = [each for each in sides.signals if _is_too_often(sides, each)]
    if sides.early_errors >= FIRST_ERRORS and not _errs_usually(sides.old):
        found = [Signal.ERROR, *(each for each in found if each is not Signal.ERROR)]
    return found


def _is_too_often(sides: Sides, signal: Signal) -> bool:
    hits, answers = sides.new.hits[signal], sides.answers
    if sides.new.ended < MIN_ANSWERS or sides.old_answers == 0:
        return False
    old_share = sides.old_hits(signal) / sides.old_answers
    if hits <= (old_share + sides.increase(signal)) * answers:
        return False  # the usual case, which costs no interval
    return is_above(hits, answers, sides.limit_for(signal), LEVEL)


def _errs_usually(old: SignalTally) -> bool:
    return old.hits[Signal.ERROR] > USUAL_ERRORS * old.ended


def count_signals(sides: Sides) -> tuple[SignalCount, ...]:
    """Count each signal on both sides, with its interval and the share that would convict."""
    return tuple(_count_of(sides, signal) for signal in sides.signals)


def _count_of(sides: Sides, signal: Signal) -> SignalCount:
    hits, old_hits = sides.new.hits[signal], sides.old.hits[signal]
    new = interval(hits, sides.answers, LEVEL)
    old = interval(sides.old_hits(signal), sides.old_answers, LEVEL)
    seen = (signal.value, hits, new.low, new.high, old_hits, old.low, old.high)
    return SignalCount(*seen, smallest_share(sides, signal))


def smallest_share(sides: Sides, signal: Signal) -> float | None:
    """Return the smallest share of answers that would convict the new weights; None without one."""
    answers, allowed = sides.answers, sides.limit_for(signal)
    if sides.new.ended < MIN_ANSWERS or not is_above(answers, answers, allowed, LEVEL):
        return None
    none, enough = 0, answers
    while enough - none > 1:
        middle = (none + enough) // 2
        if is_above(middle, answers, allowed, LEVEL):
            enough = middle
        else:
            none = middle
    return enough / answers


def is_decidable(sides: Sides) -> bool:
    """Return True if both sides have enough answers to find bad weights."""
    return sides.old.ended >= MIN_ANSWERS and any(
        smallest_share(sides, signal) is not None for signal in sides.signals
    )


def long_from(seen: Sequence[SeenAnswer]) -> int | None:
    """Return the length that one in twenty of these answers exceeds; None of too few."""
    lengths = sorted(each.tokens for each in seen)
    return lengths[int(len(lengths) * (1 - LONG_SHARE))] if len(lengths) >= MIN_ANSWERS else None


def tally_of(seen: Iterable[SeenAnswer], beyond: int | None) -> SignalTally:
    """Tally the answers that have ended so far."""
    tally = SignalTally(beyond)
    for each in seen:
        tally.add(each)
    return tally
