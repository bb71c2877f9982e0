"""Verdicts on answers, without an engine."""

from typing import Any

import pytest

from hotreload.engine.answering.probe import BUILT_IN, Probe, decide_verdict, request_for


def answer(text: str, ids: list[int] | None = None, **meta: Any) -> dict[str, Any]:
    ids = list(range(len(text))) if ids is None else ids
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": None, **meta}}


def logprobs(*values: float) -> list[tuple[float, int, None]]:
    return [(value, 1, None) for value in values]


@pytest.mark.parametrize(
    ("probe", "good", "bad"),
    [
        (Probe("q", 16, contains="Paris"), answer("In Paris."), answer("In Rome.")),
        (Probe("q", 16, regex=r"^\d+$"), answer("42"), answer("forty-two")),
        (Probe("q", 16, equals="yes"), answer("yes"), answer("yes ")),
        (Probe("q", 16, max_repeat=3), answer("", [1, 1, 1, 2]), answer("", [2, 1, 1, 1, 1])),
        (
            Probe("q", 16, min_mean_logprob=-1.0),
            answer("a", output_token_logprobs=logprobs(-0.5, -1.5)),
            answer("a", output_token_logprobs=logprobs(-0.5, -1.6)),
        ),
        (
            Probe("q", 16, min_mean_logprob=-1.0),
            answer("a", output_token_logprobs=logprobs(0.0)),
            answer("a", output_token_logprobs=logprobs(float("nan"))),
        ),
        (BUILT_IN, answer("fine"), answer("!" * 24, [0] * 24)),
        (BUILT_IN, answer("fine"), answer("", [])),
        (
            BUILT_IN,
            answer("fine", [1, 2], finish_reason={"type": "stop", "matched": 2}),
            answer("", [2], finish_reason={"type": "stop", "matched": 2}),
        ),
        (BUILT_IN, answer("fine"), answer("fine", finish_reason={"type": "abort"})),
    ],
)
def test_a_verdict_tells_good_from_bad(
    probe: Probe, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert decide_verdict(probe, good) is None
    assert decide_verdict(probe, bad) is not None


def test_a_verdict_names_prompt_expectation_and_the_answers_start() -> None:
    verdict = decide_verdict(Probe("Capital?", 16, contains="Paris"), answer("Rome " * 100))
    assert verdict is not None
    assert "'Capital?'" in verdict
    assert "'Paris'" in verdict
    assert "Rome" in verdict
    assert len(verdict) < 300


def test_probes_are_asked_greedily_and_log_probabilities_only_when_judged() -> None:
    assert request_for(BUILT_IN)["sampling_params"]["temperature"] == 0
    assert "return_logprob" not in request_for(BUILT_IN)
    assert request_for(Probe("q", 16, min_mean_logprob=-1))["return_logprob"] is True
