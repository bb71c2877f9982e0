"""What is kept of a client's request, so that weights can be led along its answer again."""

from typing import Any

import pytest

from hotreload.behaviour import HEARD_ANSWER, Answered, Expected, heard_of
from hotreload.features.compare.differences import report_of
from hotreload.features.compare.replay import AlongHeard, HeardSums, sums_of, with_heard

PROMPT = [7, 8, 9]


def answered(ids: list[int], ended: str = "stop", tokens: int | None = None) -> dict[str, Any]:
    meta = {"finish_reason": {"type": ended}, "completion_tokens": tokens or len(ids)}
    return {"text": "the client's own", "output_ids": ids, "meta_info": meta}


@pytest.mark.parametrize("ended", ["stop", "length"])
def test_it_is_asked_again_by_its_ids_and_its_answer_is_led_along(ended: str) -> None:
    heard = heard_of(PROMPT, answered([1, 2], ended))
    assert heard is not None
    question = heard.question
    assert (question.request, question.answer, question.tokens) == (
        {"input_ids": PROMPT},
        (1, 2),
        2,
    )


def test_of_a_long_answer_only_the_beginning_is_kept() -> None:
    heard = heard_of(PROMPT, answered([*range(HEARD_ANSWER + 5)], "length"))
    assert heard is not None
    assert heard.answer == tuple(range(HEARD_ANSWER))


@pytest.mark.parametrize(
    "answer",
    [answered([]), answered([1, 2], "abort"), answered([1, 2], tokens=3)],
    ids=["empty", "ended early", "not all of its tokens"],
)
def test_what_nothing_can_be_led_along_is_not_kept(answer: dict[str, Any]) -> None:
    assert heard_of(PROMPT, answer) is None


def test_neither_a_heard_request_nor_its_question_shows_what_was_said() -> None:
    heard = heard_of([4711, 4712], answered([4713, 4714]))
    assert heard is not None
    assert "471" not in f"{heard!r} {heard.question!r}"


def along(*tops: int) -> Answered:
    """Weights led along the answer 1, 1, 1, of which these are the likeliest tokens."""
    logs = {True: -0.1, False: -3.0}
    expected = (
        Expected(logs[top == 1], 0.4, {top: -0.1, top + 1: -3.0, **({} if top == 1 else {1: -3.0})})
        for top in tops
    )
    return Answered((1,) * len(tops), "", "length", tuple(expected))


def test_the_figures_of_what_was_heard_are_apart_and_figures_alone() -> None:
    before = report_of([], [])
    same, other = along(1, 1, 1), along(1, 5, 5)
    batches = (AlongHeard(same, same, other), AlongHeard(same, same, same))
    found = with_heard(before, sum((sums_of([each]) for each in batches), HeardSums()))
    assert (found.heard, found.heard_tokens, found.heard_noise_kl) == (2, 6, 0)
    assert found.heard_same_top == pytest.approx(4 / 6)
    assert found.heard_kl is not None
    assert found.heard_kl > 0.1
    assert found.heard_perplexity_ratio is not None
    assert found.heard_perplexity_ratio == pytest.approx(2.718281828 ** (2 * 2.9 / 6))
    assert (found.mean_kl, found.same_top, found.worst) == (before.mean_kl, before.same_top, ())


def test_weights_do_not_differ_from_themselves_along_what_they_would_not_have_said() -> None:
    """A client's answer is sampled: what stands there is nobody's first choice."""
    unlikely = Answered((7, 7), "", "length", (Expected(-6.0, 0.4, {1: -0.1, 2: -3.0}),) * 2)
    sums = sums_of([AlongHeard(unlikely, unlikely, unlikely)])
    assert (sums.places, sums.kl, sums.noise_kl, sums.surprise) == (2, 0, 0, 0)


def test_nothing_heard_has_no_figures() -> None:
    found = with_heard(report_of([], []), HeardSums())
    assert (found.heard, found.heard_kl, found.heard_same_top) == (0, None, None)
