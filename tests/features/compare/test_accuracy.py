"""Right answers of both weights: counts, the exact test, and what so few questions can see."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotreload.behaviour import AnswerCheck
from hotreload.features.compare.accuracy import (
    ALPHA,
    CheckedAnswers,
    p_worse,
    right_answers,
    smallest_drop,
)
from hotreload.features.compare.answer_checks import CHECK_KINDS

FOUR = AnswerCheck("answer", "4")


def is_met(kind: str, text: str, answer: str) -> bool:
    return CHECK_KINDS[kind](text, answer)


def answered(live: str, new: str, check: AnswerCheck = FOUR) -> CheckedAnswers:
    right = (is_met(check.kind, check.text, each) for each in (live, new))
    return CheckedAnswers("2 + 2 =", check, live, new, *right)


@pytest.mark.parametrize(
    ("worse", "better", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1 / 2),
        (4, 0, 1 / 16),
        (5, 0, 1 / 32),
        (0, 3, 1.0),
        (9, 2, (1 + 11 + 55) / 2**11),
        (3, 3, (1 + 6 + 15 + 20) / 2**6),
    ],
)
def test_the_chance_is_what_is_reckoned_by_hand(worse: int, better: int, expected: float) -> None:
    assert p_worse(worse, better) == expected


@pytest.mark.parametrize("changed", range(1, 11))
def test_the_chance_is_that_of_all_throws_of_so_many_coins(changed: int) -> None:
    throws = [sum(throw) for throw in product((0, 1), repeat=changed)]
    for worse in range(changed + 1):
        as_many = sum(count >= worse for count in throws)
        assert p_worse(worse, changed - worse) == as_many / 2**changed


@pytest.mark.parametrize(
    ("expected", "live_right", "better", "drop"),
    [
        (100, 90, 0, 0.05),  # five that get worse, and none that gets better: 1 in 32
        (1000, 900, 0, 0.005),
        (
            100,
            90,
            1,
            0.06,
        ),  # seven: 8 ways of 256 to have at most one of eight better; six: 8 of 128
        (100, 4, 0, None),
        (5, 5, 0, 1.0),
        (4, 4, 0, None),
    ],
)
def test_the_smallest_loss_that_could_have_been_seen(
    expected: int, live_right: int, better: int, drop: float | None
) -> None:
    assert smallest_drop(expected, live_right, better) == drop


@given(st.integers(0, 60), st.integers(0, 20))
def test_it_is_the_first_of_all_losses_that_is_no_chance(live_right: int, better: int) -> None:
    seen = [worse for worse in range(live_right + 1) if p_worse(worse, better) <= ALPHA]
    drop = smallest_drop(100, live_right, better)
    assert drop == ((seen[0] - better) / 100 if seen else None)


def test_a_large_corpus_is_reckoned_exactly_too() -> None:
    assert p_worse(600, 400) == pytest.approx(1.364e-10, rel=1e-3)
    assert p_worse(500, 500) > 0.5


def test_right_answers_are_counted_on_both_sides_and_those_that_got_worse_are_told() -> None:
    found = right_answers(
        [
            answered(" 4\n", "4"),
            answered("4", "5"),
            answered("4", "22"),
            answered("3", "4"),
            answered("no", "none"),
        ]
    )
    assert found is not None
    assert (found.expected, found.right, found.live_right) == (5, 2, 3)
    assert (found.better, found.worse, found.p_worse) == (1, 2, 0.5)
    assert (found.accuracy, found.live_accuracy, found.smallest_drop) == (0.4, 0.6, None)
    assert found.lost[0] == "'2 + 2 =': answer '4'; live '4', new '5'"
    assert len(found.lost) == 2


def test_words_about_long_answers_are_short() -> None:
    found = right_answers([answered("4", "long " * 1000)])
    assert found is not None
    assert len(found.lost[0]) < 300


def test_where_no_answer_is_expected_there_is_nothing_to_tell() -> None:
    assert right_answers([]) is None


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("answer", " 4 ", "4\n", "4."),
        ("contains", "Paris", "It is Paris.", "paris"),
        ("matches", r"\b4\b", "it is 4!", "42"),
    ],
)
def test_each_kind_of_check(kind: str, text: str, right: str, wrong: str) -> None:
    assert is_met(kind, text, right)
    assert not is_met(kind, text, wrong)


def test_an_answer_that_was_not_marked_in_time_is_wrong_for_its_weights_and_told() -> None:
    check = AnswerCheck("matches", "4")
    asked = [(True, None), (None, True), (None, None), (True, True)]
    found = right_answers([CheckedAnswers("?", check, "4", "4", *each) for each in asked])
    assert found is not None
    assert (found.expected, found.right, found.live_right) == (4, 2, 2)
    assert (found.better, found.worse) == (1, 1)
    assert found.lost == ("'?': matches '4'; live '4', new '4', not marked in time",)
