"""Right answers of new and live weights to the same questions, and the exact test of McNemar. Pure.

Of questions that both answer right, or both wrong, nothing is learnt. Of the others as many should
get worse as get better where neither is the better of the two: a coin is thrown for each. `p_worse`
is one-sided, as weights that got better are not refused: how likely as many or more of the others
get worse by chance alone.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from hotreload.behaviour import AnswerCheck, quote
from hotreload.features.compare.behaviour import RightAnswers

ALPHA = 0.05
"""Up to this `p_worse` a difference counts as seen."""
MOST_LOST = 3
"""The most answers that got worse which the words show."""


@dataclass(frozen=True, slots=True)
class CheckedAnswers:
    """A question whose answer is expected, and what both weights answered."""

    prompt: str
    check: AnswerCheck
    live: str
    new: str
    was_right: bool | None = None
    """True if the live weights answer it right; None where there was no time to find out."""
    is_right: bool | None = None
    """The same of the new weights."""


def right_answers(found: Sequence[CheckedAnswers]) -> RightAnswers | None:
    """Count the right ones; None where no answer was expected."""
    if not found:
        return None
    marks = [(each.was_right is True, each.is_right is True) for each in found]
    better, worse = marks.count((False, True)), marks.count((True, False))
    live_right = sum(was for was, _ in marks)
    lost = [each for each, mark in zip(found, marks, strict=True) if mark == (True, False)]
    return RightAnswers(
        expected=len(marks),
        right=live_right + better - worse,
        live_right=live_right,
        better=better,
        worse=worse,
        p_worse=p_worse(worse, better),
        smallest_drop=smallest_drop(len(marks), live_right, better),
        lost=tuple(map(_words, lost[:MOST_LOST])),
    )


def p_worse(worse: int, better: int) -> float:
    """The chance that of so many that changed so many or more get worse, by a fair coin."""
    changed = worse + better
    ways = sum(comb(changed, count) for count in range(better + 1))
    return ways / int(2**changed)


def smallest_drop(expected: int, live_right: int, better: int) -> float | None:
    """The smallest loss of accuracy that would have been seen, with as many that got better.

    None where even the loss of all that the live weights answer right would not be.
    """
    least = bisect_left(
        range(live_right + 1), True, key=lambda worse: p_worse(worse, better) <= ALPHA
    )
    return (least - better) / expected if least <= live_right else None


def _words(lost: CheckedAnswers) -> str:
    wanted = f"{lost.check.kind} {quote(lost.check.text)}"
    new = f"new {quote(lost.new)}{', not marked in time' if lost.is_right is None else ''}"
    return f"{quote(lost.prompt)}: {wanted}; live {quote(lost.live)}, {new}"
