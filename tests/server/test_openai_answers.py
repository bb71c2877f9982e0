"""How the engine's answers are told: stop strings, log-probabilities, what is new of a stream."""

from typing import Any

from hotreload.server.openai.answers import (
    CHAT_SHAPE,
    COMPLETION_SHAPE,
    AnswerShape,
    OpenAIAnswer,
)
from tests.server.world import FIRST


def form(shape: AnswerShape = COMPLETION_SHAPE, *, copies: int = 1) -> OpenAIAnswer:
    return OpenAIAnswer(shape, model="m", copies=copies, has_usage=False)


def answer(text: str, ended: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": ended, **meta}}


def stream(told: OpenAIAnswer, answers: list[dict[str, Any]]) -> list[str]:
    pieces = [piece for each in answers for piece in told.format_piece(each, FIRST)]
    return [piece["choices"][0]["text"] for piece in pieces]


def test_log_probabilities_of_a_stream_are_told_once_each() -> None:
    tokens = [(-0.5, 7, "a"), (-0.25, 8, "é")]
    tops = [[(-0.5, 7, "a"), (-2.0, 9, "z")], None]
    pieces = [
        answer("a", output_token_logprobs=tokens[:1], output_top_logprobs=tops[:1]),
        answer("aé", {"type": "stop"}, output_token_logprobs=tokens, output_top_logprobs=tops),
    ]
    told = form(CHAT_SHAPE)
    first, second = (
        told.format_piece(piece, FIRST)[0]["choices"][0]["logprobs"] for piece in pieces
    )
    likely = {"token": "a", "logprob": -0.5, "bytes": [97]}
    other = {"token": "z", "logprob": -2.0, "bytes": [122]}
    assert first["content"] == [{**likely, "top_logprobs": [likely, other]}]
    assert second["content"] == [
        {"token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": []}
    ]


def test_log_probabilities_of_a_completion_have_tokens_and_where_they_begin() -> None:
    tokens = [(-0.5, 7, "ab"), (-0.25, 8, "c")]
    told = form(COMPLETION_SHAPE)
    first = told.format_piece(answer("ab", output_token_logprobs=tokens[:1]), FIRST)[0]
    second = told.format_piece(answer("abc", output_token_logprobs=tokens), FIRST)[0]
    assert first["choices"][0]["logprobs"] == {
        "tokens": ["ab"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{}],
        "text_offset": [0],
    }
    assert second["choices"][0]["logprobs"]["text_offset"] == [2]


def test_a_prompt_that_was_answered_twice_counts_once() -> None:
    one = answer("x", {"type": "stop"}, prompt_tokens=5, cached_tokens=3, completion_tokens=2)
    told = form(COMPLETION_SHAPE, copies=2).format_whole([one, one], FIRST)
    assert told["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
