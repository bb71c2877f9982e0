"""Other projects' clients, by the requests that they send: each body as it is, none adapted."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.server.api_schema.known_fields import (
    CHAT,
    COMPLETION,
    EMPTY_VALUES,
    GENERATE,
    IDLE_VALUES,
    IGNORED_FIELDS,
    SAMPLING_PARAMS,
    STREAM_OPTIONS,
    KnownFields,
    is_idle,
)
from hotreload.server.openai.response_requests import RESPONSES
from hotreload.server.sglang.answers import ServedModel
from hotreload.server.text_generation import PARAMETERS
from hotreload.server_limits import Limits
from tests.server.world import World, serve

RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("clients.jsonl").read_text().splitlines()
]
"""Bodies of requests: of which project and version, where its source makes them or that they were
recorded on their way, the route; `refused` names the field that we refuse it for."""
HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[KnownFields, str, dict[str, Any]]] = {
    "generate": (GENERATE, "/generate", {"text": "hi"}),
    "sampling_params": (SAMPLING_PARAMS, "/generate", {"text": "hi"}),
    "chat": (CHAT, "/v1/chat/completions", {"messages": HI}),
    "completions": (COMPLETION, "/v1/completions", {"prompt": "hi"}),
    "responses": (RESPONSES, "/v1/responses", {"input": "hi"}),
    "stream_options": (STREAM_OPTIONS, "/v1/completions", {"prompt": "hi", "stream": True}),
    "text generation": (PARAMETERS, "/", {"inputs": "hi"}),
}
"""Tables of fields, each with its route and a request that says no more than it must."""


@pytest.fixture
async def tiny(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, model=ServedModel("tiny", "tiny")) as world:
        yield world


def with_fields(known: KnownFields, bare: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The request, with more fields where the table says that they stand."""
    inner = known.within.removesuffix(".")
    return {**bare, inner: fields} if inner else {**bare, **fields}


def fault_of(answer: httpx.Response) -> dict[str, Any]:
    """What is wrong, by every route in the same words."""
    told: dict[str, Any] = answer.json()
    error = told.get("error")
    return error if isinstance(error, dict) else told


def name_of(row: dict[str, Any]) -> str:
    return f"{row['client']} {row['route']} {row.get('refused', '')}"


@pytest.mark.parametrize("row", RECORDED, ids=name_of)
async def test_what_a_client_sends_is_answered_or_refused_by_name(
    tiny: World, row: dict[str, Any]
) -> None:
    async with tiny.client() as client:
        answer = await client.post(row["route"], json=row["body"])
    if field := row.get("refused"):
        assert answer.status_code == (404 if field == "model" else 400)
        assert fault_of(answer)["param"] == field
        return
    assert answer.status_code == 200, answer.text
    if row["body"].get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert all(line.startswith("data: ") for line in answer.text.splitlines() if line)
        wants_usage = "include_usage" in row["body"].get("stream_options", {})
        assert ('"choices":[]' in answer.text.replace(" ", "")) == wants_usage


@pytest.mark.parametrize("name", ROUTES)
async def test_a_field_that_is_not_honoured_is_refused_by_name_when_it_asks_for_something(
    tiny: World, name: str
) -> None:
    known, route, bare = ROUTES[name]
    async with tiny.client() as client:
        for field in sorted(known.unsupported):
            for value in ("telling", 7, [7], {"telling": 7}):
                body = with_fields(known, bare, {field: value})
                answer = await client.post(route, json=body)
                assert answer.status_code == 400, (field, value)
                assert "unsupported_parameter" in answer.text
                assert f"{known.within}{field}: this server does not have it" in answer.text
    assert tiny.engine.requests == []


@pytest.mark.parametrize("name", ROUTES)
async def test_a_known_field_is_taken_while_it_asks_for_nothing(tiny: World, name: str) -> None:
    known, route, bare = ROUTES[name]
    fields = known.unsupported | known.supported.keys() - with_fields(known, bare, {}).keys()
    idle = {field: [None, *known.idle_values(field)] for field in fields}
    async with tiny.client() as client:
        assert (await client.post(route, json=bare)).status_code == 200
        for at in range(max(map(len, idle.values()))):
            body = {field: values[at] for field, values in idle.items() if at < len(values)}
            answer = await client.post(route, json=with_fields(known, bare, body))
            assert answer.status_code == 200, answer.text
    alone, *beside = tiny.engine.requests
    assert all(
        {"sampling_params": {}, **each} == {"sampling_params": {}, **alone} for each in beside
    )


@pytest.mark.parametrize("name", ["generate", "chat", "completions", "responses"])
async def test_a_label_is_taken_whatever_it_says(tiny: World, name: str) -> None:
    known, route, bare = ROUTES[name]
    async with tiny.client() as client:
        for value in (True, "x", 7, {"a": 7}):
            labels = dict.fromkeys(known.ignored - known.supported.keys(), value)
            assert (await client.post(route, json={**bare, **labels})).status_code == 200
    alone, *others = tiny.engine.requests
    assert all(each == alone for each in others)


def test_false_is_no_zero() -> None:
    assert is_idle(False, (False,))
    assert not is_idle(0, (False,))
    assert not is_idle(False, (0,))
    assert is_idle(1.0, (1,))
    assert not is_idle(True, (1,))
    assert is_idle([None, ""], EMPTY_VALUES)
    assert not is_idle(["", "x"], EMPTY_VALUES)
    assert not is_idle([], (1,))


async def test_zero_asks_for_something_where_it_does(tiny: World) -> None:
    async with tiny.client() as client:
        sent = {"temperature": 0, "logprobs": 0, "seed": 0, "min_generation": 0}
        answer = await client.post("/v1/completions", json={"prompt": "hi", **sent})
        none = await client.post("/v1/completions", json={"prompt": "hi", "logprobs": False})
        rank = await client.post("/generate", json={"text": "hi", "data_parallel_rank": 0})
    assert (answer.status_code, none.status_code, rank.status_code) == (200, 200, 400)
    first, second = tiny.engine.requests
    assert first["sampling_params"] | {"max_new_tokens": 16} == {
        "temperature": 0,
        "sampling_seed": 0,
        "max_new_tokens": 16,
    }
    assert first["return_logprob"] is True
    assert "return_logprob" not in second


async def test_what_nobody_knows_is_named_or_where_it_is_set_so_left_out(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"text": "hi", "frobnicate": 1}),
        ("/generate", {"text": "hi", "sampling_params": {"frobnicate": None}}),
        ("/v1/chat/completions", {"messages": HI, "frobnicate": 1}),
        ("/v1/completions", {"prompt": "hi", "frobnicate": False}),
        ("/", {"inputs": "hi", "parameters": {"frobnicate": 1}}),
    ]
    telling = {"text": "hi", "return_hidden_states": True}
    limits = Limits()
    async with serve(tmp_path, limits=limits) as world, world.client() as client:
        for route, body in asked:
            refused = await client.post(route, json=body)
            assert (refused.status_code, "unknown_field" in refused.text) == (400, True)
        limits.unknown_fields = "ignore"
        for route, body in asked:
            assert (await client.post(route, json=body)).status_code == 200
        assert (await client.post("/generate", json=telling)).status_code == 400
    assert "frobnicate" not in str(world.engine.requests)
    assert len(world.engine.requests) == len(asked)


@pytest.mark.parametrize("name", [None, "", "default", "unknown", "tiny", "another"])
async def test_every_route_takes_our_models_name_and_those_that_name_none(
    tiny: World, name: str | None
) -> None:
    async with tiny.client() as client:
        for route, bare in (each[1:] for each in ROUTES.values() if each[1] != "/"):
            answer = await client.post(route, json={**bare, "model": name})
            assert answer.status_code == (404 if name == "another" else 200)
            if name == "another":
                assert "model_not_found" in answer.text
                assert "this server's model is 'tiny'" in answer.text


async def test_usage_comes_with_each_piece_for_who_asks_so(tiny: World) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "hi", "stream": True}
    async with tiny.client() as client:
        told = await client.post("/v1/completions", json={**body, "stream_options": options})
        alone = {"continuous_usage_stats": True}
        short = await client.post("/v1/completions", json={**body, "stream_options": alone})
    *pieces, last = pieces_of(told)
    made = [each["usage"]["completion_tokens"] for each in pieces]
    assert len(made) > 1
    assert made == sorted(set(made))
    assert all(each["usage"]["prompt_tokens"] for each in pieces)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], made[-1])
    assert all(each["choices"] and each["usage"] for each in pieces_of(short))


def pieces_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_how_hard_to_think_is_the_templates_matter(tiny: World) -> None:
    effort: dict[str, Any] = {"messages": HI, "reasoning_effort": "low"}
    own = {"chat_template_kwargs": {"reasoning_effort": "high", "kind": 1}}
    async with tiny.client() as client:
        for body in (effort, effort | own):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
        legacy = await client.post(
            "/v1/completions", json={"prompt": "a", "reasoning_effort": "low"}
        )
    assert [each["template_args"] for each in tiny.engine.requests] == [
        {"reasoning_effort": "low"},
        {"reasoning_effort": "high", "kind": 1},
    ]
    assert (legacy.status_code, fault_of(legacy)["param"]) == (400, "reasoning_effort")


async def test_both_names_of_a_limit_may_say_the_same(tiny: World) -> None:
    both = {"max_tokens": 4, "max_completion_tokens": 4}
    async with tiny.client() as client:
        answer = await client.post("/v1/chat/completions", json={"messages": HI, **both})
    assert answer.status_code == 200
    assert tiny.engine.requests[0]["sampling_params"] == {"max_new_tokens": 4}


async def test_what_is_empty_in_a_message_asks_for_nothing(tiny: World) -> None:
    empty: dict[str, Any] = {"refusal": None, "tool_calls": [], "reasoning_content": ""}
    async with tiny.client() as client:
        body = {"messages": [{**HI[0], **empty, "type": "text"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert tiny.engine.requests[0]["messages"] == HI


def test_no_table_says_twice_what_it_says_of_a_field() -> None:
    tables = [known for known, _, _ in ROUTES.values()]
    for known in tables:
        assert not known.unsupported & known.supported.keys()
        assert not known.unsupported & known.ignored
        assert known.own_idle.keys() <= known.unsupported | known.supported.keys()
    everywhere = set[str]().union(*(known.unsupported | known.supported.keys() for known in tables))
    assert IDLE_VALUES.keys() <= everywhere
    assert all(known.ignored <= IGNORED_FIELDS for known in tables)
