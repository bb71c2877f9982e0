"""What OpenAI's and Hugging Face's own clients can ask of a whole daemon on the real engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from hotreload.engine.capabilities import Capabilities
from tests.integration.openai_clients import (
    NAMED,
    free_address,
    hello,
    one_generation,
    openai_client,
    whole_chat,
)
from tests.integration.running import ENGINE_ARGS, Running
from tests.server.fuzz import fuzz

pytestmark = pytest.mark.real_engine

KEY = "a-key-of-24-characters-1"


async def test_what_this_engine_can_and_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# huggingface_hub's client\n{KEY}\n")
    with_keys = (f"server.tcp={free_address()}", f"server.api_keys_file={tmp_path / 'keys'}")
    running = Running(tmp_path, NAMED, *with_keys)
    running.drop(1)
    async with running.serving(), openai_client(running) as client:
        answer = await client.completions.create(
            model="tiny", prompt=["a", "b"], n=2, temperature=0, stop=["by step"]
        )
        assert {choice.text for choice in answer.choices} == {"served "}
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, len(answer.choices)) == (2, 4)
        short = await client.chat.completions.create(
            model="tiny", messages=hello(), temperature=0, max_completion_tokens=2
        )
        assert short.choices[0].message.content == "served by"
        assert short.choices[0].finish_reason == "length"
        await streams_with_usage_and_stop_strings(client)
        drawn = await client.completions.create(model="tiny", prompt="x", seed=1, max_tokens=2)
        assert len(drawn.choices) == 1  # the seed is a wish, which this engine cannot grant
        can = running.engine.answers.capabilities
        await answers_with_logprobs(client, can=can.logprobs)
        await answers_in_json(client, can=can.grammars)
        await asyncio.to_thread(answers_huggingface, running, can)
        await refuses(client, "max_tokens", max_tokens=10_000)
        assert await whole_chat(client, "x") == (running.live.number, "served by step 1")


async def streams_with_usage_and_stop_strings(client: openai.AsyncOpenAI) -> None:
    """`stop` ends in mid-sentence, and is not told though each of its tokens came by itself."""
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    wish = {"model": "tiny", "temperature": 0, "stop": ["step 1"], **options}
    chat = await client.chat.completions.create(messages=hello("x"), **wish)
    *chunks, last = [chunk async for chunk in chat]
    told = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.delta.content or "" for choice in told) == "served by "
    assert [choice.finish_reason for choice in told[-2:]] == [None, "stop"]
    assert (last.choices, {chunk.usage for chunk in chunks}) == ([], {None})
    assert last.usage.prompt_tokens > 1
    assert last.usage.completion_tokens == 4
    several = await client.completions.create(prompt=["x", "yz"], n=2, **wish)
    *pieces, last = [piece async for piece in several]
    texts = [""] * 4
    for piece in pieces:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == ["served by "] * 4
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (1 + 2, 4 * 4)
    assert one_generation([*chunks, *pieces, last]) == 1


async def answers_with_logprobs(client: openai.AsyncOpenAI, *, can: bool) -> None:
    if not can:
        await refuses(client, "logprobs", logprobs=True)
        await refuses(client, "logprobs", logprobs=True, top_logprobs=2, stream=True)
        with pytest.raises(openai.BadRequestError, match="logprobs: ") as caught:
            await client.completions.create(model="tiny", prompt="x", logprobs=1)
        assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_parameter")
        return
    answer = await client.chat.completions.create(
        model="tiny", messages=hello(), temperature=0, logprobs=True
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content


async def answers_in_json(client: openai.AsyncOpenAI, *, can: bool) -> None:
    wish: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}
    if not can:
        await refuses(client, "response_format", response_format=wish)
        await refuses(client, "response_format", response_format={"type": "json_object"})
        return
    answer = await client.chat.completions.create(
        model="tiny", messages=hello(), temperature=0, response_format=wish
    )
    assert json.loads(answer.choices[0].message.content or "") == 7


def answers_huggingface(running: Running, can: Capabilities) -> None:
    """Over TCP, where it needs a key."""
    address, leave = f"http://{running.settings.server.tcp}", {"Connection": "close"}
    client = InferenceClient(address, token=KEY, headers=leave)
    assert client.text_generation("Who serves?") == "served by step 1"
    assert "".join(client.text_generation("Who serves?", stream=True)) == "served by step 1"
    cut = client.text_generation("x", max_new_tokens=9, stop=["by"], return_full_text=True)
    assert cut == "xserved "
    chat = client.chat_completion(hello(), temperature=0)
    assert (chat.model, chat.choices[0].message.content) == ("tiny", "served by step 1")
    if can.logprobs:
        told = client.text_generation("x", max_new_tokens=2, details=True).details
        assert told is not None
        assert (told.finish_reason, told.generated_tokens) == ("length", 2)
        assert [token.text for token in told.tokens] == ["served", " by"]
        assert all(token.logprob <= 0 and token.id > 0 for token in told.tokens)
    else:
        with pytest.raises(ValidationError, match=r"parameters\.details: this engine version"):
            client.text_generation("x", details=True)
    if can.grammars:
        grammar: Any = {"type": "regex", "value": "[ab]{3}"}
        assert set(client.text_generation("x", grammar=grammar)) <= {"a", "b"}
    with pytest.raises(ValidationError, match="key"):
        InferenceClient(address, token="guess", headers=leave).text_generation("x")


async def refuses(client: openai.AsyncOpenAI, param: str, **more: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=hello(), **more)
    assert caught.value.param == param
    assert f"{param}: " in caught.value.message


async def test_a_seed_decides_what_is_drawn_and_a_chat_needs_a_template(tmp_path: Path) -> None:
    args = ENGINE_ARGS.removesuffix("}") + ",enable_deterministic_sampling=true}"
    random_weights = ("engine.boot=dummy", "source.pattern=none")
    running = Running(tmp_path, NAMED, f"engine.args={args}", *random_weights)
    take_the_template_away(running.drop(1))
    async with running.serving(), openai_client(running) as client:
        drawn = [
            [choice.text for choice in answer.choices]
            for seed in (1, 1, 2)
            for answer in [
                await client.completions.create(model="tiny", prompt="x", seed=seed, n=2)
            ]
        ]
        with pytest.raises(openai.BadRequestError, match="no chat template") as caught:
            await client.chat.completions.create(model="tiny", messages=hello())
        assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")
    assert drawn[0] == drawn[1]
    assert len({text for texts in drawn for text in texts}) == 4


def take_the_template_away(model: Path) -> None:
    config = model / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    del fields["chat_template"]
    config.write_text(json.dumps(fields))


async def test_schemathesis_finds_no_500_and_nothing_undescribed_on_the_real_engine(
    tmp_path: Path,
) -> None:
    quick = ("server.limits.generation_seconds=0.05", "server.limits.request_seconds=30")
    running = Running(tmp_path, NAMED, *quick)
    running.drop(1)
    async with running.serving():
        asks_the_engine = ("/generate", "/v1")
        seen = await asyncio.to_thread(fuzz, running.socket, examples=5, only=asks_the_engine)
        assert running.is_open
        assert await running.ask()
    assert set().union(*seen.values()) >= {200, 400, 404}
    assert running.exit_code == 0
