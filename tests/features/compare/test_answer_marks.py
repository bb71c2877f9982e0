"""Answers are marked right or wrong, and no expression of an operator's keeps clients waiting."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

import pytest

from hotreload.behaviour import AnswerCheck, Answered, Question
from hotreload.errors import NotJudged
from hotreload.features.compare.accuracy import NAMED_QUESTIONS, checked_answers
from hotreload.features.compare.answer_checks import ALL_SECONDS, EACH_SECONDS

FOR_EVER = r"^(\d+,?)+$"
"""Takes seconds to find out that what is below does not match, and years with twice the digits."""
LONG = "1" * 26 + "!"
FOUR = AnswerCheck("answer", "4")


def says(*texts: str) -> list[Answered]:
    return [Answered((), text, "stop", ()) for text in texts]


def asks(*checks: AnswerCheck | None) -> list[Question]:
    return [
        Question(f"{at}?", 8, check=check, place=f"prompts.jsonl: line {at}")
        for at, check in enumerate(checks, 1)
    ]


async def marks(
    checks: Sequence[AnswerCheck | None], live: list[Answered], new: list[Answered]
) -> list[tuple[bool | None, bool | None]]:
    found = await checked_answers(asks(*checks), live, new)
    return [(each.was_right, each.is_right) for each in found]


async def test_answers_are_marked_where_one_is_expected() -> None:
    kinds = [AnswerCheck("contains", "Paris"), None, FOUR, AnswerCheck("matches", r"\b4\b")]
    live, new = says("Paris!", "x", "4", "44"), says("\ud800", "y", " 4\n", "so 4")
    assert await marks(kinds, live, new) == [(True, False), (True, True), (False, True)]


async def test_where_none_is_expected_no_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert await marks([None], says("4"), says("5")) == []


async def test_an_expression_that_takes_for_ever_keeps_nobody_waiting_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks = [FOUR, AnswerCheck("matches", FOR_EVER), FOUR]
    marking_on = asyncio.create_task(marks(checks, says("4", "1,1", "5"), says("4", LONG, "4")))
    turns = 0
    while not marking_on.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert await marking_on == [(True, True), (True, None), (False, True)]
    assert turns > 10
    (told,) = caplog.records
    assert told.message == "behaviour.not_marked"
    assert (told.answers_to, told.count) == (["prompts.jsonl: line 2"], 1)  # type: ignore[attr-defined]


async def test_many_such_expressions_take_no_more_than_so_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = 2 * int(ALL_SECONDS / EACH_SECONDS)
    checks = [AnswerCheck("matches", FOR_EVER)] * many
    found = await marks(checks, says(*[LONG] * many), says(*[LONG] * many))
    assert found == [(None, None)] * many
    (told,) = caplog.records
    assert len(told.answers_to) == NAMED_QUESTIONS  # type: ignore[attr-defined]
    assert told.count == many  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/false"])
async def test_a_program_that_does_not_run_marks_nothing_as_wrong(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(NotJudged, match="the program that marks answers did not run"):
        await marks([FOUR], says("4"), says("4"))
