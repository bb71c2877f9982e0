"""Tools of a chat by OpenAI's own client: what reaches the engine, and how its calls are told."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from hotreload.errors import BadRequest
from tests.server.test_openai import CHAT, HELLO, client_of, refusal
from tests.server.world import World

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
TIME: Any = {"type": "function", "function": {"name": "get_time", "description": "now"}}
SHOWN_TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "now",
        "parameters": {"type": "object", "properties": {}},
    },
}
CALLS = [
    {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"name": "get_time", "arguments": "{}"},
]
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    world.engine.calls = CALLS
    async with client_of(world) as client:
        yield client


async def test_calls_are_told_beside_the_text(world: World, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="model", messages=HELLO, tools=[WEATHER, TIME], n=2
    )
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "served by step 1"
        calls: Any = choice.message.tool_calls
        assert [call.function.model_dump() for call in calls] == CALLS
        assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
        assert "index" not in calls[0].model_dump()
    assert (
        len({call.id for choice in answer.choices for call in choice.message.tool_calls or ()}) == 4
    )
    assert world.engine.requests[0]["tools"] == [WEATHER, SHOWN_TIME]


async def test_the_clients_own_stream_puts_calls_together(
    world: World, client: openai.AsyncOpenAI
) -> None:
    async with client.chat.completions.stream(
        model="model", messages=HELLO, tools=[WEATHER, TIME]
    ) as stream:
        done = [event async for event in stream if event.type.endswith("arguments.done")]
        answer = await stream.get_final_completion()
    assert len(done) == 2
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    calls: Any = choice.message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        tuple(c.values()) for c in CALLS
    ]


async def test_each_call_of_a_stream_comes_once_under_its_index(
    world: World, client: openai.AsyncOpenAI
) -> None:
    world.engine.words = ["one"]
    stream = await client.chat.completions.create(
        model="model", messages=HELLO, tools=[WEATHER], stream=True
    )
    deltas = [c.choices[0].delta for c in [chunk async for chunk in stream]]
    told = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(call.index, call.type) for call in told] == [(0, "function")]


async def test_without_a_call_the_end_is_a_stop(client: openai.AsyncOpenAI, world: World) -> None:
    world.engine.calls = []
    answer = await client.chat.completions.create(model="model", messages=HELLO, tools=[WEATHER])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)


async def test_a_call_that_was_all_leaves_no_text(client: openai.AsyncOpenAI, world: World) -> None:
    world.engine.words = [""]
    answer = await client.chat.completions.create(model="model", messages=HELLO, tools=[WEATHER])
    assert answer.choices[0].message.content is None
    world.engine.end = {"type": "length"}
    answer = await client.chat.completions.create(model="model", messages=HELLO, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("choice", "reaches"),
    [
        ("auto", {"tools": [WEATHER, SHOWN_TIME]}),
        ("none", {}),
        ("required", {"tools": [WEATHER, SHOWN_TIME], "tool_choice": "required"}),
        (NAMED, {"tools": [SHOWN_TIME], "tool_choice": "one"}),
    ],
)
async def test_how_a_tool_is_chosen_reaches_the_engine(
    world: World, client: openai.AsyncOpenAI, choice: Any, reaches: dict[str, Any]
) -> None:
    await client.chat.completions.create(
        model="model", messages=HELLO, tools=[WEATHER, TIME], tool_choice=choice
    )
    asked = world.engine.requests[0]
    assert {name: asked[name] for name in asked if name.startswith("tool")} == reaches


async def test_a_strict_tool_is_the_engines_to_keep(
    world: World, client: openai.AsyncOpenAI
) -> None:
    strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    await client.chat.completions.create(model="model", messages=HELLO, tools=[strict])
    assert world.engine.requests[0]["tools"] == [strict]


async def test_one_call_at_most_where_the_client_wants_no_more(
    world: World, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(
        model="model",
        messages=HELLO,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert world.engine.requests[0]["tool_choice"] == "one"


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])
async def test_calls_and_what_came_of_them_go_to_the_template(world: World, arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12"}]},
    ]
    async with world.client() as client:
        body = {"messages": messages}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    shown = {"id": "c1", "type": "function"}
    assert world.engine.requests[0]["messages"] == [
        *HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**shown, "function": {"name": "f", "arguments": {"city": "Oslo"}}}],
        },
        {"role": "tool", "content": "12", "tool_call_id": "c1"},
    ]


def make_call(function: Any, **more: Any) -> dict[str, Any]:
    call = {"type": "function", "function": function, **more}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tools": [{}]}, "tools[0]", "must be"),
        ({"tools": ["x"]}, "tools", "a list of tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "must be"),
        ({"tools": [{**WEATHER, "x": 1}]}, "tools[0].x", "leave it out"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "two tools"),
        ({"tools": [WEATHER] * 129}, "tools", "129 are too many"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "letters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
            "tools[0].function.parameters",
            "JSON schema",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": "yes"}}]},
            "tools[0].function.strict",
            "true or false",
        ),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice", "names none of the tools"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", "must be"),
        ({"tools": [WEATHER], "tool_choice": 3}, "tool_choice", "a string or an object"),
        ({"tools": [WEATHER], "tool_choice": {"type": "x"}}, "tool_choice", "must be"),
        (make_call({}), "messages[0].tool_calls[0]", "must be"),
        (
            make_call({"name": "f", "arguments": "{"}),
            "messages[0].tool_calls[0].function.arguments",
            "a JSON object",
        ),
        (
            make_call({"name": "f", "arguments": [1]}),
            "messages[0].tool_calls[0].function.arguments",
            "a JSON object",
        ),
        (make_call({"name": "f"}, id=3), "messages[0].tool_calls[0]", "an id"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]},
            "messages[0].tool_call_id",
            "a string",
        ),
    ],
)
async def test_tools_that_cannot_be_had_are_refused_by_name(
    world: World, more: dict[str, Any], param: str, words: str
) -> None:
    status, error = await refusal(world, "/v1/chat/completions", CHAT | more)
    assert (status, error["param"]) == (400, param)
    assert words in error["message"]
    assert world.engine.requests == []


async def test_a_schema_that_no_grammar_can_be_made_of_is_the_tools_fault(world: World) -> None:
    cannot = "sampling_params.json_schema"
    world.engine.steps.faults["prepare"] = BadRequest(f"{cannot}: bad", param=cannot)
    body = CHAT | {"tools": [WEATHER], "tool_choice": "required"}
    status, error = await refusal(world, "/v1/chat/completions", body)
    assert (status, error["param"], error["message"]) == (400, "tools", "tools: bad")


async def test_json_of_calls_in_the_stream_is_that_of_openai(world: World) -> None:
    world.engine.calls = CALLS[:1]
    world.engine.words = [""]
    async with world.client() as client:
        body = CHAT | {"tools": [WEATHER], "stream": True}
        told = (await client.post("/v1/chat/completions", json=body)).text
    first = json.loads(told.splitlines()[0].removeprefix("data: "))["choices"][0]
    (call,) = first["delta"]["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"index": 0, "type": "function", "function": CALLS[0]}
    assert first["delta"].keys() == {"role", "tool_calls"}
    assert first["finish_reason"] == "tool_calls"
