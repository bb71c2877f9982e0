"""Each sign that an answer went wrong, by what the engine says of it."""

from typing import Any

import pytest

from hotreload.features.bake.signals import TAIL, SeenAnswer, Signal, repeats, seen_of

STOP = {"type": "stop", "matched": 2}


def answer(text: str = "well said", ended: Any = STOP, **more: Any) -> dict[str, Any]:
    ids = more.pop("output_ids", [5, 6, 2])
    meta = {"finish_reason": ended, "completion_tokens": len(ids)}
    return {"text": text, "output_ids": ids, "meta_info": meta, **more}


def signals_of(told: dict[str, Any]) -> set[Signal]:
    seen = seen_of(told)
    assert seen is not None
    return set(seen.signals)


def test_a_good_answer_shows_none_and_is_as_long_as_it_is() -> None:
    assert seen_of(answer()) == SeenAnswer(frozenset(), 3)


@pytest.mark.parametrize("text", ["", " \n"])
def test_one_without_text_is_empty(text: str) -> None:
    assert signals_of(answer(text)) == {Signal.EMPTY}


def test_one_that_calls_a_tool_is_not() -> None:
    assert signals_of(answer("", tool_calls=[{"name": "f", "arguments": "{}"}])) == set()


def test_one_that_was_to_have_no_token_says_nothing_of_the_weights() -> None:
    assert seen_of(answer("", {"type": "length", "length": 0}, output_ids=[])) is None


def test_one_that_ran_into_a_limit_has_no_stop() -> None:
    assert signals_of(answer(ended={"type": "length", "length": 3})) == {Signal.LENGTH}


def test_one_that_the_engine_broke_off_is_an_error_and_nothing_else() -> None:
    assert signals_of(answer("", ended={"type": "abort", "message": "oom"})) == {Signal.ERROR}


@pytest.mark.parametrize("code", ["asked", "swap"])
def test_one_that_a_client_or_a_swap_ended_says_nothing(code: str) -> None:
    assert seen_of(answer("", ended={"type": "abort", "code": code})) is None


def test_one_that_says_the_same_four_times_repeats_itself() -> None:
    circle = list(range(10, 20))
    assert signals_of(answer(output_ids=[1, 2, 3, *circle * 4])) == {Signal.REPETITION}
    assert not repeats([1, 2, 3, *circle * 3])


def test_a_run_of_one_token_counts_by_its_length_and_not_at_each_of_its_places() -> None:
    assert not repeats([7] * 31)  # a rule, an indentation
    assert repeats([7] * 32)


def test_only_the_end_of_a_long_answer_is_looked_at() -> None:
    once = list(range(TAIL))
    assert not repeats([7] * 64 + once)
    assert repeats(once + [7] * 64)


def test_an_engine_that_names_no_tokens_is_taken_at_its_word_for_their_number() -> None:
    told = {"text": "hi", "meta_info": {"finish_reason": STOP, "completion_tokens": 9}}
    assert seen_of(told) == SeenAnswer(frozenset(), 9)
