"""OpenAI's routes over a real socket, mostly by OpenAI's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from hotreload.errors import BadRequest, EngineLost
from hotreload.server_limits import Limits
from tests.server.world import SECOND, World, answer_on, serve
from tests.waiting import PATIENCE

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT = {"model": "model", "messages": HELLO}


@asynccontextmanager
async def client_of(world: World, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.AsyncHTTPTransport(uds=str(world.path))
    async with openai.AsyncOpenAI(
        base_url="http://hotreload/v1",
        api_key="none",
        http_client=httpx2.AsyncClient(transport=transport),
        max_retries=0,
        **options,
    ) as client:
        yield client


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(world) as client:
        yield client


async def refusal(world: World, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error of a request that is refused, in OpenAI's shape."""
    async with world.client() as client:
        answer = await client.post(path, json=body)
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    error = dict(answer.json()["error"])
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error


async def test_the_model_is_listed_with_what_is_live(
    world: World, client: openai.AsyncOpenAI
) -> None:
    (model,) = [model async for model in client.models.list()]
    assert (model.id, model.object, model.created) == ("model", "model", 1_700_000_000)
    assert model.model_extra == {
        "hotreload": {
            "generation": 1,
            "revision": "aaaa1111",
            "fingerprint": "fp-1",
            "weight_version": "1",
        }
    }
    assert (await client.models.retrieve("model")).id == "model"
    for other in ("other", "org/other"):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve(other)
        assert caught.value.code == "model_not_found"
    assert {route for route, _ in world.metrics.finished} == {"/v1/models", "/v1/models/{name}"}


async def test_a_chat_answers_and_names_who_made_it(
    world: World, client: openai.AsyncOpenAI
) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="model", messages=HELLO)
    answer = raw.parse()
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "served by step 1")
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)
    assert answer.usage.total_tokens == 11
    assert answer.system_fingerprint == "fp-1"
    assert answer.model_extra is not None
    assert answer.model_extra["hotreload"]["generation"] == 1
    assert raw.headers["x-hotreload-generation"] == "1"
    await world.settle()
    assert world.metrics.finished == [("/v1/chat/completions", 200)]
    assert world.metrics.counted == 4


async def test_what_is_asked_reaches_the_engine_in_its_own_words(
    world: World, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(
        model="model",
        messages=[
            {"role": "developer", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        seed=2**31 + 5,
        n=2,
        extra_body={"top_k": 3, "min_tokens": 1, "chat_template_kwargs": {"thinking": False}},
    )
    assert world.engine.requests == [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "ab"},
            ],
            "template_args": {"thinking": False},
            "sampling_params": {
                "temperature": 0.5,
                "top_p": 0.9,
                "presence_penalty": 1,
                "sampling_seed": 5,
                "top_k": 3,
                "min_new_tokens": 1,
                "max_new_tokens": 9,
            },
            "stream": False,
            "seed_is_a_wish": True,
            "copies": 2,
        }
    ]


async def test_log_probabilities_and_formats_are_asked_of_the_engine(
    world: World, client: openai.AsyncOpenAI
) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}
    await client.chat.completions.create(
        model="model", messages=HELLO, logprobs=True, top_logprobs=2, response_format=schema
    )
    await client.completions.create(model="model", prompt=[1, 2], logprobs=0)
    chat, completion = world.engine.requests
    assert (chat["return_logprob"], chat["top_logprobs_num"]) == (True, 2)
    assert chat["sampling_params"] == {"json_schema": '{"type": "null"}'}
    assert (completion["return_logprob"], completion["top_logprobs_num"]) == (True, 0)
    assert completion["input_ids"] == [1, 2]
    assert completion["sampling_params"] == {"max_new_tokens": 16}


async def test_completions_of_several_prompts_count_each_prompt_once(
    world: World, client: openai.AsyncOpenAI
) -> None:
    answer = await client.completions.create(model="model", prompt=["a", "b"], n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert {choice.text for choice in answer.choices} == {"served by step 1"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (14, 24)


async def test_a_stream_adds_up_to_the_whole_answer_and_ends_with_its_usage(
    world: World, client: openai.AsyncOpenAI
) -> None:
    stream = await client.chat.completions.create(
        model="model", messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    for index in (0, 1):
        deltas = [c.choices[0].delta for c in chunks if c.choices[0].index == index]
        assert "".join(delta.content or "" for delta in deltas) == "served by step 1"
        assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert [c.choices[0].finish_reason for c in chunks][-2:] == ["stop", "stop"]
    assert {c.usage for c in chunks} == {None}
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 8)
    assert {(c.model_extra or {})["hotreload"]["generation"] for c in [*chunks, last]} == {1}
    await world.settle()
    assert world.metrics.first_tokens == 1


async def test_a_streamed_completion_has_no_usage_unless_it_is_asked_for(
    world: World, client: openai.AsyncOpenAI
) -> None:
    stream = await client.completions.create(model="model", prompt="a", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "served by step 1"
    assert {chunk.usage for chunk in chunks} == {None}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_a_drain_ended_says_so(
    world: World, client: openai.AsyncOpenAI, is_stream: bool
) -> None:
    world.engine.end = {"type": "abort", "code": "swap", "message": "ended early for a swap"}
    answer: Any = await client.chat.completions.create(**CHAT, stream=is_stream)
    last = [chunk async for chunk in answer][-1] if is_stream else answer
    assert last.choices[0].finish_reason == "abort"
    assert last.choices[0].stop_reason == "ended early for a swap"


async def test_an_engine_lost_in_mid_stream_raises_in_the_client(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.engine.breaks_after = (2, EngineLost("the scheduler thread died"))
    stream = await client.chat.completions.create(model="model", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="the scheduler thread died"):
        [chunk async for chunk in stream]


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"verbosity": "low"}, "verbosity", "leave it out"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "leave it out"),
        ({"store": True}, "store", "leave it out"),
        ({"frobnicate": 1}, "frobnicate", "unknown field 'frobnicate'; known are"),
        ({"prompt": "a"}, "prompt", "unknown field"),
        ({"messages": []}, "messages", "at least one, not an empty list"),
        ({"messages": None}, "messages", "messages is missing"),
        ({"messages": ["hi"]}, "messages[0]", "an object with a role"),
        ({"messages": [*HELLO, {"role": "robot", "content": "x"}]}, "messages[1].role", "one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "a string or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "nothing but text",
        ),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "only text and tools",
        ),
        ({"temperature": "hot"}, "temperature", "a number from 0 to 100"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"max_tokens": -1}, "max_tokens", "from 0"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "give one of them"),
        ({"stop": ["a", ""]}, "stop", "none of them empty"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "leave it out",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "must be"),
        ({"min_generation": -1}, "min_generation", "whole number"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(
    world: World, more: dict[str, Any], param: str, words: str
) -> None:
    status, error = await refusal(world, "/v1/chat/completions", CHAT | more)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]
    assert world.engine.requests == []


async def test_what_asks_for_nothing_is_no_fault(world: World) -> None:
    idle = {
        "tools": [],
        "tool_choice": "auto",
        "logit_bias": {},
        "store": False,
        "metadata": {"team": "evals"},
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "hello"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "modalities": ["text"],
        "verbosity": "medium",
        "response_format": {"type": "text"},
        "user": "somebody",
        "stream_options": None,
    }
    async with world.client() as client:
        answer = await client.post("/v1/chat/completions", json=CHAT | idle)
        legacy = await client.post(
            "/v1/completions", json={"prompt": "a", "echo": False, "best_of": 1, "suffix": ""}
        )
    assert (answer.status_code, legacy.status_code) == (200, 200)
    assert world.engine.requests[0] == {"messages": HELLO, "sampling_params": {}, "stream": False}


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], [True], {"a": 1}])
async def test_a_prompt_that_is_none_is_refused(world: World, prompt: Any) -> None:
    status, error = await refusal(world, "/v1/completions", {"prompt": prompt})
    assert (status, error["param"]) == (400, "prompt")


async def test_what_the_engine_cannot_do_is_named_as_openai_does(world: World) -> None:
    cannot = "sampling_params.sampling_seed"
    world.engine.steps.faults["prepare"] = BadRequest(
        f"{cannot}: ignored here", code="unsupported", param=cannot
    )
    status, error = await refusal(world, "/v1/chat/completions", CHAT | {"seed": 1})
    assert (status, error["param"]) == (400, "seed")
    assert (error["message"], error["code"]) == ("seed: ignored here", "unsupported")


@pytest.mark.parametrize("written", ["max_tokens", "max_completion_tokens"])
async def test_too_long_an_answer_is_refused_by_the_name_that_was_written(
    world: World, written: str
) -> None:
    cannot = "sampling_params.max_new_tokens"
    world.engine.steps.faults["prepare"] = BadRequest(f"{cannot}: at most 9", param=cannot)
    status, error = await refusal(world, "/v1/chat/completions", CHAT | {written: 10})
    assert (status, error["param"], error["message"]) == (400, written, f"{written}: at most 9")


async def test_another_model_is_a_404_that_names_ours(
    world: World, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "this server's model is 'model'" in caught.value.message


async def test_paths_and_methods_that_are_not_there_answer_as_openai_does(world: World) -> None:
    status, error = await refusal(world, "/v1/embeddings", {})
    assert (status, error["code"]) == (404, "not_found")
    assert "POST /v1/chat/completions" in error["message"]
    status, error = await refusal(world, "/v1/models", {})
    assert (status, error["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
    ],
)
async def test_a_base_url_that_is_off_by_its_v1_is_told_so(
    world: World, asked: str, meant: str
) -> None:
    status, error = await refusal(world, asked, CHAT)
    assert (status, error["code"]) == (404, "not_found")
    assert f"OpenAI's API is at {meant}: its clients' base_url ends in /v1" in error["message"]


async def test_a_body_that_is_too_long_is_a_413_as_openai_does_it(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(body_bytes=100)) as world:
        status, error = await refusal(world, "/v1/completions", {"prompt": "x" * 200})
    assert (status, error["code"]) == (413, "body_too_long")


async def test_while_booting_clients_are_told_to_come_back(tmp_path: Path) -> None:
    async with serve(tmp_path, booted=False) as world, client_of(world) as client:
        for asking in (client.models.list(), client.completions.create(model="model", prompt="a")):
            with pytest.raises(openai.InternalServerError) as caught:
                await asking
            assert (caught.value.status_code, caught.value.code) == (503, "booting")
            assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_n_counts_against_the_bound_of_a_batch(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(batch=3)) as world:
        status, error = await refusal(world, "/v1/completions", {"prompt": ["a", "b"], "n": 2})
    assert (status, error["code"], error["param"]) == (400, "batch_too_big", "n")


async def test_a_chat_that_is_held_is_answered_by_the_next_generation(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.gate.hold()
    asking = asyncio.create_task(client.chat.completions.create(model="model", messages=HELLO))
    await world.until(lambda: world.gate.held == 1)
    world.go_live(SECOND)
    assert ((await asking).model_extra or {})["hotreload"]["generation"] == 2


async def test_a_client_that_leaves_closes_its_generation(world: World) -> None:
    world.engine.may_answer.clear()
    async with client_of(world) as client:
        stream = await client.chat.completions.create(model="model", messages=HELLO, stream=True)
        await anext(stream)
        assert (world.engine.running, world.gate.inside) == (1, 1)
        await stream.close()
    await asyncio.wait_for(world.engine.went_on.wait(), PATIENCE)
    await world.until(lambda: bool(world.metrics.finished))
    assert (world.engine.running, world.gate.inside) == (0, 0)


async def test_the_routes_share_one_bound_of_requests(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(concurrent=1)) as world:
        world.engine.may_answer.clear()
        reader, _ = await world.ask_raw({"text": "a"})
        await world.until(lambda: world.engine.running == 1)
        status, error = await refusal(world, "/v1/completions", {"prompt": "a"})
        world.engine.may_answer.set()
        assert (await answer_on(reader))[0] == 200
    assert (status, error["code"]) == (503, "too_many_requests")
    assert error["type"] == "server_error"


async def test_the_routes_answer_over_tcp_too(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, tcp=True) as world,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{world.tcp_port}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        answer = await client.chat.completions.create(model="model", messages=HELLO)
    assert answer.choices[0].message.content == "served by step 1"
