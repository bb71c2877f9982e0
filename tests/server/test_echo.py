"""`echo` of /v1/completions: the prompt before its answer, as those ask who measure likelihoods."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.server.test_openai import client_of, refusal
from tests.server.world import World

TOKENS = {
    "input_token_logprobs": [(None, 1, "W"), (-2.0, 2, "ho")],
    "input_top_logprobs": [None, [(-0.5, 3, "x")]],
    "output_token_logprobs": [(-0.25, 4, " I")],
    "output_top_logprobs": [[(-0.25, 4, " I")]],
}
"""What the engine says of the prompt `Who`, and of the first token of its answer."""


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    chunk = world.engine._chunk

    def with_tokens(*asked: Any) -> dict[str, Any]:
        made = chunk(*asked)
        return {**made, "meta_info": {**made["meta_info"], **TOKENS}}

    world.engine._chunk = with_tokens  # type: ignore[method-assign, assignment]
    async with client_of(world) as client:
        yield client


async def test_the_prompt_stands_before_each_answer(
    world: World, client: openai.AsyncOpenAI
) -> None:
    answer = await client.completions.create(model="model", prompt=["a ", "b "], echo=True, n=2)
    assert [choice.text for choice in answer.choices] == [
        *["a served by step 1"] * 2,
        *["b served by step 1"] * 2,
    ]
    assert "return_logprob" not in world.engine.requests[0]
    stream = await client.completions.create(model="model", prompt="a ", echo=True, stream=True)
    texts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(texts) == "a served by step 1"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_likelihood_is_that_of_each_token_of_the_prompt(
    world: World, client: openai.AsyncOpenAI, is_stream: bool
) -> None:
    world.engine.words = ["I"]
    answer: Any = await client.completions.create(
        model="model", prompt=[1, 2], echo=True, logprobs=1, max_tokens=1, stream=is_stream
    )
    if is_stream:
        (answer,) = [chunk async for chunk in answer]
    (choice,) = answer.choices
    assert choice.text == "WhoI"
    assert choice.logprobs.model_dump() == {
        "tokens": ["W", "ho", " I"],
        "token_logprobs": [None, -2.0, -0.25],
        "top_logprobs": [None, {"x": -0.5}, {" I": -0.25}],
        "text_offset": [0, 1, 3],
    }
    asked = world.engine.requests[0]
    assert (asked["logprob_start_len"], asked["top_logprobs_num"]) == (0, 1)


async def test_of_no_token_nothing_is_told_but_the_prompt(
    world: World, client: openai.AsyncOpenAI
) -> None:
    answer = await client.completions.create(
        model="model", prompt="Who", echo=True, logprobs=0, max_tokens=0
    )
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("Who", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["W", "ho"]
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (0, 7)
    assert world.engine.requests[0]["sampling_params"]["max_new_tokens"] == 0


async def test_a_stop_string_in_the_prompt_ends_nothing(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.engine.words = ["served", "by"]  # an engine cuts off the stop itself
    world.engine.end = {"type": "stop", "matched": "step"}
    answer = await client.completions.create(
        model="model", prompt="a step ", echo=True, stop=["step"]
    )
    assert answer.choices[0].text == "a step served by"


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"prompt": [1, 2], "echo": True}, "echo", "needs logprobs for a prompt of token ids"),
        ({"max_tokens": -1, "echo": True}, "max_tokens", "from 0"),
        ({"echo": 1}, "echo", "true or false"),
    ],
)
async def test_what_cannot_be_echoed_is_refused_by_its_name(
    world: World, more: dict[str, Any], param: str, words: str
) -> None:
    status, error = await refusal(world, "/v1/completions", {"prompt": "a"} | more)
    assert (status, error["param"]) == (400, param)
    assert words in error["message"]
    assert world.engine.requests == []
