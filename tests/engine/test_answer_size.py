"""Log-probabilities add up: tokens, times those beside each, times answers."""

from typing import Any

import pytest

from hotreload.engine.answering.items import MOST_LOGPROBS, Parsed
from hotreload.engine.answering.requests import parse
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest

LIMITS = EngineLimits(vocabulary=150_000, input_tokens=30_000, total_tokens=32_768)
NEW = Capabilities(logprobs=True, grammars=True, seeds=True, sampling=frozenset({"max_new_tokens"}))


def parsed(answers: int, tokens: int | None, top: int, **more: Any) -> Parsed:
    request = {
        "input_ids": [[1] * 1000] * answers,
        "sampling_params": {} if tokens is None else {"max_new_tokens": tokens},
        "return_logprob": True,
        "top_logprobs_num": top,
        **more,
    }
    return parse(request, limits=LIMITS, can=NEW, encode=list, chat=lambda *_: [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "tokens", "top", "more"),
    [
        (1, 30_000, 20, {}),
        (128, 1000, 20, {}),
        (256, None, 100, {}),
        (1, 2000, 1000, {}),
        (1, 16, 2000, {"logprob_start_len": 0}),
        (256, 30_000, 150_000, {"return_logprob": False}),
    ],
)
def test_what_people_ask_for_is_let_through(
    answers: int, tokens: int | None, top: int, more: dict[str, Any]
) -> None:
    assert len(parsed(answers, tokens, top, **more).items) == answers


@pytest.mark.parametrize(
    ("answers", "tokens", "top", "more"),
    [
        (1, 128, 150_000, {}),
        (256, None, 150_000, {}),
        (256, 30_000, 20, {}),
        (1, 30_000, 20, {"copies": 128}),
        (256, 16, 0, {"token_ids_logprob": [[1, 2, 3] * 1000] * 256}),
        (256, 16, 20, {"logprob_start_len": 0}),
    ],
)
def test_what_would_take_all_memory_is_refused_by_name(
    answers: int, tokens: int | None, top: int, more: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest, match=f"{MOST_LOGPROBS} are allowed") as caught:
        parsed(answers, tokens, top, **more)
    assert caught.value.param == "top_logprobs_num"
