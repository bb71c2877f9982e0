"""/v1/responses by OpenAI's own client: text in and out, and nothing is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from hotreload.errors import BadRequest, EngineLost
from tests.server.fuzz import fuzz
from tests.server.test_openai import client_of, refusal
from tests.server.test_tools import CALLS, CITY, SHOWN_TIME, WEATHER
from tests.server.world import FIRST, World

PATH = "/v1/responses"
FLAT: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(world) as client:
        yield client


async def test_a_response_answers_and_names_who_made_it(
    world: World, client: openai.AsyncOpenAI
) -> None:
    raw = await client.responses.with_raw_response.create(
        model="model", input="hello", metadata={"team": "evals"}, store=True
    )
    answer = raw.parse()
    assert (answer.output_text, answer.status) == ("served by step 1", "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 4)
    assert answer.usage.input_tokens_details.cache_write_tokens == 0
    assert answer.usage.total_tokens == 11
    assert answer.metadata == {"team": "evals"}
    assert answer.model_extra is not None
    assert answer.model_extra["hotreload"]["fingerprint"] == "fp-1"
    assert json.loads(raw.text)["store"] is False
    assert raw.headers["x-hotreload-generation"] == "1"
    await world.settle()
    assert world.metrics.finished == [(PATH, 200)]
    Response.model_validate_json(raw.text)


async def test_what_is_asked_reaches_the_engine_as_a_chat(
    world: World, client: openai.AsyncOpenAI
) -> None:
    items: Any = [
        {"role": "user", "content": "hello"},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "12"},
        {"role": "user", "content": [{"type": "input_text", "text": "so?"}]},
    ]
    await client.responses.create(
        model="model",
        instructions="be brief",
        input=items,
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}},
        extra_body={"top_k": 3},
    )
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"a": 1}}},
    ]
    assert world.engine.requests == [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "hi", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c1", "content": "12"},
                {"role": "user", "content": "so?"},
            ],
            "template_args": {"reasoning_effort": "low"},
            "sampling_params": {
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 3,
                "max_new_tokens": 9,
                "json_schema": '{"type": "null"}',
            },
            "stream": False,
        }
    ]


async def test_the_clients_own_stream_adds_up_to_the_whole_response(
    world: World, client: openai.AsyncOpenAI
) -> None:
    async with client.responses.stream(model="model", input="hello") as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    assert answer.output_text == "served by step 1"
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 4,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (answer.model_extra or {})["hotreload"]["generation"] == 1


async def test_calls_are_items_of_their_own(world: World, client: openai.AsyncOpenAI) -> None:
    world.engine.calls = CALLS
    time: Any = {"type": "function", **SHOWN_TIME["function"], "strict": False}  # type: ignore[dict-item]
    whole = await client.responses.create(model="model", input="hello", tools=[FLAT, time])
    async with client.responses.stream(model="model", input="hello", tools=[FLAT, time]) as stream:
        streamed = await stream.get_final_response()
    for answer in (whole, streamed):
        told = [item for item in answer.output if item.type == "function_call"]
        assert [{"name": item.name, "arguments": item.arguments} for item in told] == CALLS
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    assert world.engine.requests[0]["tools"] == [WEATHER, SHOWN_TIME]
    world.engine.words = [""]
    alone = await client.responses.create(model="model", input="hello", tools=[FLAT])
    assert [item.type for item in alone.output] == ["function_call"]
    named: Any = {"type": "function", "name": "get_weather"}
    await client.responses.create(model="model", input="x", tools=[FLAT, time], tool_choice=named)
    last = world.engine.requests[-1]
    assert (last["tools"], last["tool_choice"]) == ([WEATHER], "one")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("end", "status"), [({"type": "length"}, "incomplete"), ({"type": "abort"}, "failed")]
)
async def test_what_was_cut_short_says_so(
    world: World, client: openai.AsyncOpenAI, end: Any, status: str, is_stream: bool
) -> None:
    world.engine.end = {**end, "message": "ended early for a swap"}
    answer: Any = await client.responses.create(model="model", input="x", stream=is_stream)
    if is_stream:
        last = [event async for event in answer][-1]
        assert last.type == f"response.{status}"
        answer = last.response
    assert answer.status == status
    if status == "failed":
        assert answer.error.message == "ended early for a swap"
        return
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"


async def test_an_answer_of_nothing_is_an_empty_message(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.engine.words = [""]
    answer = await client.responses.create(model="model", input="x")
    assert (answer.output_text, [item.type for item in answer.output]) == ("", ["message"])


async def test_an_engine_lost_in_mid_stream_raises_in_the_client(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.engine.breaks_after = (2, EngineLost("the scheduler thread died"))
    stream = await client.responses.create(model="model", input="x", stream=True)
    with pytest.raises(openai.APIError, match="the scheduler thread died"):
        [event async for event in stream]


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"input": None}, "input", "input is missing"),
        ({"input": []}, "input", "at least one"),
        ({"input": ["x"]}, "input[0]", "an object"),
        ({"input": [{"type": "item_reference"}]}, "input[0].type", "stores nothing"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "one of"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "nothing but text",
        ),
        ({"input": [{"type": "function_call", "name": 3}]}, "input[0].tool_calls[0]", "must be"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "does not have it"),
        ({"conversation": "c"}, "conversation", "does not have it"),
        ({"background": True}, "background", "does not have it"),
        ({"prompt": {"id": "p"}}, "prompt", "does not have it"),
        ({"truncation": "auto"}, "truncation", "does not have it"),
        ({"include": ["x"]}, "include", "does not have it"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "leave it out"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "leave it out"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "must be"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "no tools of its own"),
        ({"tools": [{**FLAT, "strict": 1}]}, "tools[0].strict", "true or false"),
        ({"tools": [{**FLAT, "name": "a b"}]}, "tools[0].name", "letters"),
        ({"metadata": {"a": 1}}, "metadata", "strings"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "up to 16"),
        ({"max_tokens": 3}, "max_tokens", "did you mean max_output_tokens?"),
        ({"messages": []}, "messages", "did you mean input?"),
        ({"model": "gpt-4"}, "model", "this server's model is"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(
    world: World, more: dict[str, Any], param: str, words: str
) -> None:
    status, error = await refusal(world, PATH, {"input": "x"} | more)
    assert (status, error["param"]) == (404 if param == "model" else 400, param)
    assert words in error["message"]
    assert world.engine.requests == []


@pytest.mark.parametrize(
    ("cannot", "given", "named"),
    [
        ("max_new_tokens", {"max_output_tokens": 9}, "max_output_tokens"),
        ("messages", {}, "input"),
        ("sampling_params.json_schema", {"text": {"format": {"type": "json_object"}}}, "text"),
    ],
)
async def test_what_the_engine_cannot_do_is_named_as_it_was_written(
    world: World, cannot: str, given: dict[str, Any], named: str
) -> None:
    world.engine.steps.faults["prepare"] = BadRequest(f"{cannot}: no", param=cannot)
    status, error = await refusal(world, PATH, {"input": "x"} | given)
    assert (status, error["param"], error["message"]) == (400, named, f"{named}: no")


async def test_schemathesis_finds_answers_and_refusals_as_they_are_described(world: World) -> None:
    world.go_live(replace(FIRST, number=2**53))  # as new as any that is asked for
    seen = await asyncio.to_thread(fuzz, world.path, examples=20, only=PATH)
    assert seen[f"POST {PATH}"] >= {200, 400}
