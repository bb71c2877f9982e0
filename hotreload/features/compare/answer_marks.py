"""Marks the answers of both weights right or wrong, in a process of its own.

So no regular expression of an operator's keeps clients waiting, however long it takes.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import batched

from hotreload.behaviour import Answered, Question, quote
from hotreload.errors import NotJudged
from hotreload.features.compare import answer_checks
from hotreload.features.compare.accuracy import CheckedAnswers
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.behaviour")

NAMED_QUESTIONS = 5
"""The most questions that the log names whose answers could not be marked."""


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
