"""The report of how new weights differ, from answers and expectations that are made up."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotreload.behaviour import NOTED, Answered, Expected, questions, texts
from hotreload.features.compare.differences import BothRead, Pair, kl_of, report_of, with_answers
from hotreload.features.compare.evidence import Behaviour, BothAnswers

SURE, UNSURE = math.log(0.9), math.log(0.05)


def expects(*likeliest: int, token: float = SURE) -> Expected:
    logs = [SURE, *[UNSURE] * (len(likeliest) - 1)]
    return Expected(token, 0.4, dict(zip(likeliest, logs, strict=True)))


def says(tokens: Sequence[int], ended: str = "stop", **more: int) -> Answered:
    expected = tuple(expects(token, 99) for token in tokens)
    return Answered(tuple(tokens), " ".join(map(str, tokens)), ended, expected)


def expected_along(live: int, new: int) -> Expected:
    return expects(new, 99, token=SURE if live == new else -9.0)


def pair(live: Sequence[int], new: Sequence[int], ended: str = "stop") -> Pair:
    tokens = zip(live, new, strict=False)
    along = replace(says(live), expected=tuple(expected_along(*each) for each in tokens))
    return Pair("?", says(live), says(live), says(new, ended), along, most=6)


def whole_report(pairs: Sequence[Pair], read: Sequence[BothRead]) -> Behaviour:
    return with_answers(report_of(pairs, read), pairs)


def test_weights_that_answer_alike_differ_in_nothing() -> None:
    found = whole_report([pair([1, 2, 3], [1, 2, 3])], [BothRead(says([4, 5]), says([4, 5]))])
    assert (found.agreement, found.same_first, found.length_ratio) == (1, 1, 1)
    assert (found.mean_kl, found.p99_kl, found.noise_kl) == (0, 0, 0)
    assert (found.same_top, found.perplexity_ratio, found.first_difference) == (1, 1, None)
    assert (found.questions, found.tokens, found.empty, found.endless) == (1, 3, 0, 0)


def test_each_difference_is_told() -> None:
    pairs = [pair([1, 2, 3, 4], [1, 2, 9, 4, 5, 6]), pair([1, 2], [7]), pair([1], [1])]
    found = whole_report(pairs, [])
    assert found.agreement == pytest.approx((2 / 6 + 0 + 1) / 3)
    assert found.same_first == pytest.approx(2 / 3)
    assert found.first_difference == 2
    assert found.length_ratio == pytest.approx(8 / 7)
    assert found.mean_kl is not None
    assert found.mean_kl > 0.3
    assert found.same_top is not None
    assert found.same_top < 1
    assert found.perplexity_ratio is None
    assert found.worst[0] == BothAnswers("?", "1 2", "7", "agreement: 0 of 2 tokens are alike")
    assert str(found.worst[0]) == "'?': live '1 2', new '7'"
    assert found.worst[2].why == "mean_kl: 0 along the same answer"


def unanswered(live: Sequence[int], tops: Sequence[int], ended: str = "stop") -> Pair:
    """A pair of which only what the new weights expect along the live ones' answer is known."""
    said = says(live, ended)
    if ended == "stop":
        said = replace(said, expected=(*said.expected, expects(0)))
    along = replace(said, expected=tuple(map(expects, tops)))
    return Pair("?", said, said, None, along, most=4)


@pytest.mark.parametrize(
    ("pair", "agreement"),
    [
        (unanswered([1, 2], [1, 2, 0]), 1),  # to its end
        (unanswered([1, 2, 3, 4], [1, 2, 3, 4], "length"), 1),
        (unanswered([1, 2, 3, 4], [1, 9, 3, 4], "length"), 1 / 4),
        (unanswered([1, 2], [1, 9, 0]), 1 / 4),  # whatever comes after it
        (unanswered([1, 2], [1, 2, 3]), 2 / 4),  # it goes on where the live ones end
        (unanswered([], [0]), 1),
        (unanswered([], [5]), 0),
    ],
)
def test_before_the_new_weights_answer_it_is_known_how_far_they_agree_at_least(
    pair: Pair, agreement: float
) -> None:
    found = report_of([pair], [])
    assert found.agreement == agreement
    assert (found.length_ratio, found.empty, found.endless, found.repeating) == (None,) * 4
    assert (found.worst, found.right_answers) == ((), None)


def test_of_an_answer_that_is_longer_than_was_noted_it_is_known_that_its_beginning_agrees() -> None:
    tokens = [*range(1, 40)]
    long = replace(unanswered(tokens, tokens[: NOTED - 1], "length"), most=40)
    assert report_of([long], []).agreement == pytest.approx(16 / 40)


def test_of_answers_that_differ_most_a_history_keeps_little() -> None:
    long = replace(pair([1], [2]), prompt="x" * 5000)
    kept = whole_report([replace(long, live=replace(long.live, text="y" * 5000))] * 9, []).worst
    assert len(kept) == 3
    assert all(len(each.prompt + each.live + each.new) <= 400 for each in kept)


def test_empty_endless_and_repeating_answers_are_counted_on_both_sides() -> None:
    round_and_round = [5, 6] * 8
    pairs = [
        pair([1], []),
        pair([1], round_and_round, ended="length"),
        pair(round_and_round, [1, 2, 3]),
    ]
    found = whole_report(pairs, [])
    assert (found.empty, found.endless, found.repeating) == (1, 1, 1)
    assert (found.live_empty, found.live_endless, found.live_repeating) == (0, 0, 1)


def test_where_nothing_was_said_before_something_is_no_number_of_times_as_long() -> None:
    silent = whole_report([pair([], []), pair([], [])], [])
    assert (silent.length_ratio, silent.same_first, silent.agreement) == (1, 1, 1)
    found = whole_report([pair([], [1, 2, 3, 4, 5]), pair([], [])], [])
    assert (found.length_ratio, found.same_first, found.agreement) == (None, 0.5, 0.5)
    assert (found.tokens, found.mean_kl) == (0, None)
    assert whole_report([pair([1, 2], [])], []).length_ratio == 0


def test_an_engine_that_notes_nothing_has_answers_to_compare_all_the_same() -> None:
    bare = Answered((1, 2), "1 2", "stop", ())
    found = whole_report([Pair("?", bare, bare, bare, bare, most=6)], [])
    assert found.agreement == 1
    assert (found.mean_kl, found.same_top, found.noise_kl, found.entropy) == (None,) * 4


def test_a_text_that_surprises_twice_as_much_has_twice_the_perplexity() -> None:
    new = replace(says([4, 5]), expected=tuple(expects(4, token=SURE - math.log(2)) for _ in "ab"))
    found = whole_report([pair([1], [1])], [BothRead(says([4, 5]), new)])
    assert found.perplexity_ratio == pytest.approx(2)


def logs_of(weights: Sequence[float]) -> list[float]:
    return [math.log(each / math.fsum(weights)) for each in weights]


@given(st.lists(st.floats(0.01, 1), min_size=6, max_size=6), st.permutations(range(6)))
def test_the_divergence_of_the_likeliest_is_never_more_than_that_of_all(
    weights: list[float], order: list[int]
) -> None:
    live, new = logs_of(weights), logs_of([weights[at] for at in order])
    whole = math.fsum(math.exp(a) * (a - b) for a, b in zip(live, new, strict=True))

    top = max(range(6), key=lambda at: live[at])

    def likeliest(logs: list[float]) -> Expected:
        first = sorted(range(6), key=lambda at: -logs[at])[:4]
        return Expected(logs[top], 0.0, {at: logs[at] for at in first})

    assert 0 <= kl_of(likeliest(live), likeliest(new)) <= whole + 1e-6
    assert kl_of(likeliest(live), likeliest(live)) == pytest.approx(0, abs=1e-6)


def test_weights_that_name_none_of_the_others_tokens_diverge_by_much() -> None:
    assert kl_of(expects(1, 2, 3), expects(7, 8, 9, token=-12.0)) > 9


def test_what_is_built_in_is_asked_in_one_batch() -> None:
    assert 2 * len(questions()) + len(texts()) <= 16
