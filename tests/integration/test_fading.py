"""What comes while an old generation still answers: a stop, a lost engine, NaN, a way back."""

from pathlib import Path

import pytest

from hotreload.events import AnswersWithheld, GateChanged, GenerationEnded
from hotreload.types import GateState, Outcome
from tests.engine.real import overflowing
from tests.integration.running import Running, post, request_for, words
from tests.integration.test_drain import ROOM, LongAnswer
from tests.integration.test_nonfinite import POISON, withheld

pytestmark = pytest.mark.real_engine

TIMES = 72
TOKENS = 5 * TIMES
"""A tiny model's answer is four tokens and an end; one that may not stop begins again."""


def long_answer(running: Running) -> LongAnswer:
    return LongAnswer(running, TOKENS)


async def assert_whole(long: LongAnswer, generation: int, step: int) -> None:
    """It was made by this generation from its first word to its last."""
    answer = await long.task
    assert answer["meta_info"]["generation"] == generation
    assert answer["text"] == words(step) * TIMES


def answering(running: Running) -> list[tuple[int, int]]:
    """Which generations answer, newest first, and how many requests each."""
    return [
        (each.generation.number, each.requests) for each in running.daemon.entrance.list_answering()
    ]


def ended(running: Running) -> list[int]:
    """The generations whose end was told, in order."""
    told = [each for each in running.happened if isinstance(each, GenerationEnded)]
    return [each.generation.number for each in told]


async def two_side_by_side(running: Running) -> tuple[LongAnswer, LongAnswer]:
    """A long answer by step 1, and one by step 2, which went live in the middle of it."""
    old = long_answer(running)
    await old.begun.wait()
    assert (await running.attempted(running.drop(2))).outcome is Outcome.LIVE
    new = long_answer(running)
    await new.begun.wait()
    assert answering(running) == [(2, 1), (1, 1)]
    return old, new


async def test_told_to_stop_while_two_generations_answer_both_end_their_answers(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, ROOM)
    running.drop(1)
    async with running.serving():
        old, new = await two_side_by_side(running)
        running.stop()
        await assert_whole(old, 1, 1)
        await assert_whole(new, 2, 2)
    assert running.exit_code == 0


async def test_an_engine_that_dies_while_two_generations_answer_leaves_nobody_waiting(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, ROOM)
    running.drop(1)
    async with running.serving():
        old, new = await two_side_by_side(running)
        scheduler = running.engine._parts.running_scheduler.scheduler
        scheduler.get_next_batch_to_run = None  # the next step raises on the engine's own thread
        await running.until(lambda: running.daemon.entrance.gates[0].state is GateState.SEALED)
        lost = [(await each.task)["error"]["code"] for each in (old, new)]
        assert lost == ["engine_lost", "engine_lost"]
        assert running.daemon.status.snapshot()["state"] == "lost"
    assert running.exit_code == 70
    assert ended(running) == []  # nobody knows


async def test_a_way_back_while_the_old_ones_answer_is_a_flip_to_them(tmp_path: Path) -> None:
    running = Running(tmp_path, ROOM)
    running.drop(1)
    async with running.serving():
        old, new = await two_side_by_side(running)
        back = (await post(running, "rollback", hold=False)).json()
        assert (back["outcome"], back["label"], back["generation"]) == ("live", "step_1", 3)
        assert back["pause_seconds"] == 0.0
        assert answering(running) == [(3, 0), (2, 1), (1, 1)]
        answer = await running.ask()
        assert (answer["text"], answer["meta_info"]["generation"]) == (words(1), 3)
        await assert_whole(old, 1, 1)
        await assert_whole(new, 2, 2)
        await running.until(lambda: ended(running) == [2])
        assert (await running.attempted(running.drop(4))).outcome is Outcome.LIVE
        await running.until(lambda: ended(running) == [2, 1, 3])
        assert answering(running) == [(4, 0)]
    assert not [each for each in running.happened if is_holding(each)]


def is_holding(event: object) -> bool:
    return isinstance(event, GateChanged) and event.state is GateState.HOLDING


async def test_nan_while_an_old_generation_answers_is_withheld_and_blamed_on_nobody(
    tmp_path: Path,
) -> None:
    """Which weights made it nobody knows: a rollback waits until one generation answers alone."""
    running = Running(tmp_path, ROOM, "checks.on_nonfinite_answers=rollback")
    running.drop(1)
    async with running.serving(), running.client() as client:
        old = long_answer(running)
        await old.begun.wait()
        bad = overflowing(running.checkpoints / "step_2", words(2))
        assert (await running.attempted(bad)).outcome is Outcome.LIVE
        assert answering(running) == [(2, 0), (1, 1)]
        refused = await client.post("/generate", json=request_for(POISON))
        assert (refused.status_code, refused.json()["code"]) == (500, "nonfinite_answer")
        await assert_whole(old, 1, 1)
        await running.until(lambda: withheld(running) == 1 and running.is_open)
        await running.until(lambda: ended(running) == [1])
        assert (await running.ask())["text"] == words(2)
        assert running.live.number == 2
        again = await client.post("/generate", json=request_for(POISON))
        assert again.status_code == 500
        await running.until(lambda: running.live.number == 3)
        assert (await running.ask())["text"] == words(1)
    told = [each for each in running.happened if isinstance(each, AnswersWithheld)]
    assert {each.generation.number for each in told} == {2}
