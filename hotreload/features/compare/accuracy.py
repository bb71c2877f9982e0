"""Right answers of new and live weights to the same questions, and the exact test of McNemar.

Of questions that both answer right, or both wrong, nothing is learnt. Of the others as many should
get worse as get better where neither is the better of the two: a coin is thrown for each. `p_worse`
is one-sided, as weights that got better are not refused: how likely as many or more of the others
get worse by chance alone.

The answers are marked in a process of its own, so that no regular expression of an operator's keeps
clients waiting, however long it takes.
"""

import json
import logging
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from math import comb

from hotreload.behaviour import AnswerCheck, Answered, Question, quote
from hotreload.errors import NotJudged
from hotreload.features.compare import answer_checks
from hotreload.features.compare.evidence import RightAnswers
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.behaviour")

NAMED_QUESTIONS = 5
"""The most questions that the log names whose answers could not be marked."""
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


async def checked_answers(
    asked: Sequence[Question], live: Sequence[Answered], new: Sequence[Answered]
) -> list[CheckedAnswers]:
    """Check both answers to each question that has an expected answer.

    The log names a question whose answer could not be marked in time.
    """
    expecting = [*_pair_with_checks(asked, live, new)]
    if not expecting:
        return []
    checks = [
        (each.check.kind, each.check.text, answer)
        for _, each in expecting
        for answer in (each.live, each.new)
    ]
    marks = await in_thread(
        lambda cancel: _marks(checks), leave_as="marking answers", is_read=False
    )
    found = [
        replace(each, was_right=was, is_right=now)
        for (_, each), (was, now) in zip(expecting, batched(marks, 2), strict=True)
    ]
    pairs = zip(expecting, found, strict=True)
    _log_unmarked([name for (name, _), each in pairs if None in (each.was_right, each.is_right)])
    return found


def _pair_with_checks(
    asked: Sequence[Question], live: Sequence[Answered], new: Sequence[Answered]
) -> Iterator[tuple[str, CheckedAnswers]]:
    """Each whose answer is expected, not marked yet, with its name."""
    for question, one, other in zip(asked, live, new, strict=True):
        if question.check is not None:
            name = question.place or quote(question.prompt)
            yield name, CheckedAnswers(question.prompt, question.check, one.text, other.text)


def _log_unmarked(late: Sequence[str]) -> None:
    if late:
        named = late[:NAMED_QUESTIONS]
        log.warning("behaviour.not_marked", extra={"answers_to": named, "count": len(late)})


def _marks(checks: Sequence[tuple[str, str, str]]) -> Sequence[bool | None]:
    """Run the program; it bounds its own time. NotJudged if it could not mark them."""
    # Isolated: neither our modules nor the caller's folder are among what it imports.
    argv = [sys.executable, "-I", answer_checks.__file__]
    given = json.dumps(checks).encode()
    try:
        ended = subprocess.run(
            argv, input=given, stdout=subprocess.PIPE, start_new_session=True, check=True
        )
    except (OSError, subprocess.SubprocessError) as fault:
        raise NotJudged(f"the program that marks answers did not run: {fault}") from fault
    marks: Sequence[bool | None] = json.loads(ended.stdout)
    return marks
