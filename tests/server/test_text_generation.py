"""POST / and /v1, asked by huggingface_hub's InferenceClient, which has an address alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import OverloadedError, TextGenerationError, ValidationError

from hotreload.errors import BadRequest
from tests.server.world import World, serve

GREEDY = {"temperature": 0, "max_new_tokens": 100}


class Asking:
    """The client, which blocks, in threads."""

    def __init__(self, world: World) -> None:
        address = f"http://127.0.0.1:{world.tcp_port}"
        leave = {"Connection": "close"}  # other tests count the sockets that are open
        self._client = InferenceClient(address, token="none", headers=leave)

    async def text(self, *args: Any, **kwargs: Any) -> Any:
        ask = partial(self._client.text_generation, *args, **kwargs)
        return await asyncio.to_thread(lambda: list(ask()) if kwargs.get("stream") else ask())

    async def chat(self, *args: Any, **kwargs: Any) -> Any:
        ask = partial(self._client.chat_completion, *args, **kwargs)
        return await asyncio.to_thread(lambda: list(ask()) if kwargs.get("stream") else ask())


@asynccontextmanager
async def serve_client(folder: Path, **more: Any) -> AsyncIterator[tuple[World, Asking]]:
    async with serve(folder, tcp=True, **more) as world:
        yield world, Asking(world)


async def test_text_is_generated_whole_and_as_a_stream(tmp_path: Path) -> None:
    async with serve_client(tmp_path) as (world, client):
        assert await client.text("hello") == "served by step 1"
        pieces = await client.text("hello", stream=True)
        full = await client.text("hello", return_full_text=True)
        bare = await client.text("hello", details=True)
    assert "".join(pieces) == "served by step 1"
    assert len(pieces) == 4
    assert full == "helloserved by step 1"
    assert (bare.generated_text, bare.details.finish_reason) == ("served by step 1", "eos_token")
    assert bare.details.generated_tokens == 4
    plain, streamed, *_, detailed = world.engine.requests
    assert plain == {"text": "hello", "sampling_params": GREEDY, "stream": False}
    assert streamed == {**plain, "stream": True}
    assert detailed["return_logprob"] is True
    assert {route for route, _ in world.metrics.finished} == {"/"}


async def test_a_stream_ends_with_all_of_it_and_why_it_ended(tmp_path: Path) -> None:
    async with serve_client(tmp_path) as (world, client):
        world.engine.end = {"type": "length"}
        *_, last = await client.text("hello", stream=True, details=True, seed=3)
    assert last.generated_text == "served by step 1"
    assert (last.details.finish_reason, last.details.generated_tokens) == ("length", 4)
    assert (last.details.input_length, last.details.seed) == (7, 3)
    assert last["hotreload"]["generation"] == 1


async def test_what_is_asked_of_an_answer_reaches_the_engine_in_its_words(tmp_path: Path) -> None:
    async with serve_client(tmp_path) as (world, client):
        await client.text(
            "hello",
            max_new_tokens=9,
            do_sample=True,
            seed=5,
            stop=["x"],
            repetition_penalty=1.1,
            grammar={"type": "regex", "value": "a+"},
            best_of=1,
            watermark=False,
        )
        await client.text("hello", temperature=0.5, grammar={"type": "json", "value": {}})
    sampled, warm = (request["sampling_params"] for request in world.engine.requests)
    assert sampled == {
        "max_new_tokens": 9,
        "sampling_seed": 5,
        "stop": ["x"],
        "repetition_penalty": 1.1,
        "regex": "a+",
    }
    assert warm == {"temperature": 0.5, "max_new_tokens": 100, "json_schema": "{}"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"truncate": 5}, "parameters.truncate: this server does not have it"),
        ({"max_new_tokens": -1}, "parameters.max_new_tokens must be a whole number from 0"),
        ({"best_of": 2}, "parameters.best_of: this server does not have it"),
        ({"grammar": {"type": "xml"}}, "parameters.grammar: must be"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    async with serve_client(tmp_path) as (world, client):
        with pytest.raises(ValidationError) as caught:
            await client.text("hello", **more)
    assert words in str(caught.value)
    assert world.engine.requests == []


async def test_what_the_engine_cannot_do_is_named_as_the_client_does(tmp_path: Path) -> None:
    cannot = "return_logprob"
    async with serve_client(tmp_path) as (world, client):
        world.engine.steps.faults["prepare"] = BadRequest(f"{cannot}: not here", param=cannot)
        with pytest.raises(ValidationError, match=r"parameters\.details: not here"):
            await client.text("hello", details=True)


async def test_a_name_that_nobody_knows_and_a_body_without_inputs_are_refused(
    world: World,
) -> None:
    async with world.client() as client:
        typo = await client.post("/", json={"inputs": "a", "parameters": {"temprature": 1}})
        empty = await client.post("/", json={"parameters": {}})
    assert (typo.status_code, typo.json()["code"]) == (400, "unknown_field")
    assert "'parameters.temprature'" in typo.json()["detail"]
    assert empty.json()["error"] == empty.json()["detail"] == "inputs is missing"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_we_end_is_no_answer(tmp_path: Path, stream: bool) -> None:
    async with serve_client(tmp_path) as (world, client):
        world.engine.end = {"type": "abort", "code": "swap", "message": "ended early for a swap"}
        with pytest.raises(TextGenerationError, match="ended early for a swap"):
            await client.text("hello", stream=stream)


async def test_while_booting_the_client_hears_that_it_is_too_early(tmp_path: Path) -> None:
    async with serve_client(tmp_path, booted=False) as (_, client):
        with pytest.raises(OverloadedError, match="starting"):
            await client.text("hello")


async def test_a_chat_of_a_model_without_a_name_is_of_the_model_there_is(tmp_path: Path) -> None:
    """Where the client has an address alone, it calls the model `dummy`."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}
    hello = [{"role": "user", "content": "hello"}]
    async with serve_client(tmp_path) as (world, client):
        answer = await client.chat(hello, max_tokens=9, response_format=wanted)
        chunks = await client.chat(hello, stream=True)
    assert answer.choices[0].message.content == "served by step 1"
    assert answer.model == "model"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "served by step 1"
    whole, _ = world.engine.requests
    assert whole["sampling_params"] == {"max_new_tokens": 9, "json_schema": '{"type": "null"}'}
