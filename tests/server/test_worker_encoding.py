"""A worker encodes prompts where it can; what clients read is what they would read without."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tests.server.world
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.errors import BadRequest, EngineLost, NotServing
from hotreload.features.bake.conduct import Conducts
from hotreload.server.workers import remote_model
from hotreload.types import Lease
from tests.server.world import FIRST, SECOND, World, serve

NAME = "as the first engine does"
WORDS = ["served", "by", "step", "1"]
ASK = {"text": "hi"}
ENCODED = {"input_ids": [104, 105]}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class FakeEncoder:
    """Encodes by the letter, and refuses what a test says."""

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self.refusal: Exception | None = None
        self.begun = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def encode(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self.begun += 1
        await self.may_end.wait()
        if self.refusal is not None:
            raise self.refusal
        if "tools" in request:
            return None
        text = request.get("text") or "hi"
        ids = [_ids_of(each) for each in text] if isinstance(text, list) else _ids_of(text)
        rest = {name: value for name, value in request.items() if name not in ("text", "messages")}
        return {**rest, "input_ids": ids}

    def make_texts(self, request: Mapping[str, Any]) -> "FakeTexts":
        return FakeTexts()


class FakeTexts:
    """Makes as many words as there are tokens."""

    def add_text(self, piece: dict[str, Any]) -> dict[str, Any]:
        words = " ".join(WORDS[: piece["meta_info"]["completion_tokens"]])
        return piece if "text" in piece else {"text": words, **piece}


def _ids_of(text: str) -> list[int]:
    return [ord(each) for each in text]


@pytest.fixture(autouse=True)
def by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.server.world, "BY_A_WORKER", True)


@pytest.fixture
async def encoder(world: World) -> FakeEncoder:
    """That of a worker, which has the name of what the engine does itself."""
    encoder = FakeEncoder()
    world.engine.encoder = EncoderCopy(NAME, b"")
    await encodes_by(world, encoder)
    return encoder


async def encodes_by(world: World, encoder: FakeEncoder | None) -> None:
    """Have the worker told that it has another one."""
    assert world.worker is not None
    world.worker.encoder = encoder
    world.worker.send_encoder(encoder.name if encoder else "")
    await world.settle()


async def test_the_engine_is_asked_ids_and_nothing_else_changes(
    world: World, encoder: FakeEncoder
) -> None:
    async with world.client() as client:
        for stream in (False, True):
            answer = await client.post("/generate", json=ASK | {"stream": stream, "rid": "mine"})
            assert "served by step 1" in answer.text
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    asked = world.engine.requests
    assert [each["input_ids"] for each in asked] == [[104, 105]] * 3
    assert [each.get("text_at_end") for each in asked] == [None, True, None]
    assert asked[0]["rid"] == "mine"
    assert asked[1]["stream"] is True


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_the_pieces_of_a_stream_have_their_texts(
    world: World, encoder: FakeEncoder, path: str
) -> None:
    asked = {"text": "hi"} if path == "/generate" else {"prompt": "hi"}
    told = []
    for each in (encoder, None):
        await encodes_by(world, each)
        async with world.client() as client:
            told.append(await events_of(client, path, asked | {"stream": True}))
    assert told[0] == told[1]
    assert len(told[0]) > 2


async def test_who_reads_slowly_is_given_the_newest_text(
    world: World, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_model, "MOST_UNREAD", 1)
    async with world.client() as client:
        events = await events_of(client, "/generate", ASK | {"stream": True})
    assert events[-1]["text"] == "served by step 1"
    for event in events:
        tokens = event["meta_info"]["completion_tokens"]
        assert event["text"].split() == WORDS[:tokens]


async def events_of(client: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What a stream tells, but for what is another each time."""
    told = (await client.post(path, json=body)).text.split("data: ")
    events = [json.loads(each) for each in told if each.startswith("{")]
    return [{k: v for k, v in event.items() if k not in ("id", "created")} for event in events]


async def test_prompts_and_copies_are_counted_as_before(world: World, encoder: FakeEncoder) -> None:
    world.listener(Conducts).is_counting = True
    async with world.client() as client:
        body = {"prompt": ["hi", "a"], "n": 3}
        choices = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert len(choices) == 6
    assert world.engine.requests[0]["input_ids"] == [[104, 105], [97]]
    assert len(world.listener(Conducts).of(FIRST).recent) == 2


async def test_what_a_worker_leaves_to_the_engine_goes_there_as_it_came(
    world: World, encoder: FakeEncoder
) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    async with world.client() as client:
        body = {**CHAT, "tools": [tool]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert "messages" in world.engine.requests[0]


# --- an engine that is another one by now ---------------------------------------------------------


async def test_what_another_engine_would_encode_otherwise_is_given_to_it_as_it_came(
    world: World, encoder: FakeEncoder
) -> None:
    world.engine.encoder = EncoderCopy("otherwise", b"")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert answer.json()["text"] == "served by step 1"
    assert (encoder.begun, world.engine.requests) == (1, [ASK])


async def test_so_is_what_would_be_refused_by_an_engine_that_is_gone(
    world: World, encoder: FakeEncoder
) -> None:
    encoder.refusal = BadRequest("text: too long for me", param="text")
    world.engine.encoder = None
    async with world.client() as client:
        assert (await client.post("/generate", json=ASK)).status_code == 200
    assert world.engine.requests == [ASK]


async def test_an_engine_that_is_replaced_while_a_worker_encodes_is_given_what_came(
    world: World, encoder: FakeEncoder
) -> None:
    encoder.may_end.clear()
    other = world.another_engine("served by another")
    other.encoder = EncoderCopy("otherwise", b"")
    async with world.client() as client:
        asking = asyncio.create_task(client.post("/generate", json=ASK))
        await world.until(lambda: encoder.begun == 1)
        world.gate.open(Lease(SECOND, other))
        await encodes_by(world, FakeEncoder("otherwise"))
        encoder.may_end.set()
        answer = await asking
        assert answer.json()["text"] == "served by another"
        assert other.requests == [ASK]
        await client.post("/generate", json=ASK)
    assert other.requests[1:] == [ENCODED]


async def test_a_worker_that_is_told_of_none_encodes_nothing(
    world: World, encoder: FakeEncoder
) -> None:
    await encodes_by(world, None)
    async with world.client() as client:
        assert (await client.post("/generate", json=ASK)).status_code == 200
    assert (encoder.begun, world.engine.requests) == (0, [ASK])


async def test_who_is_answered_a_second_time_is_asked_for_ids_again_by_one_that_encodes_alike(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, replay=True) as world:
        world.engine.encoder = EncoderCopy(NAME, b"")
        await encodes_by(world, FakeEncoder())
        world.engine.swaps_ahead = 1
        world.engine.swap = lambda: world.go_live(SECOND)
        async with world.client() as client:
            answer = await client.post("/generate", json=ASK)
    assert answer.headers["x-hotreload-generation"] == "2"
    assert world.engine.requests == [ENCODED, ENCODED]


async def test_and_for_texts_by_one_that_does_not(tmp_path: Path) -> None:
    async with serve(tmp_path, replay=True) as world:
        world.engine.encoder = EncoderCopy(NAME, b"")
        other = world.another_engine("served by another")
        await encodes_by(world, FakeEncoder())

        world.engine.swaps_ahead = 1
        world.engine.swap = lambda: world.gate.change(Lease(SECOND, other))
        async with world.client() as client:
            answer = await client.post("/generate", json=ASK)
    assert answer.json()["text"] == "served by another"
    assert (world.engine.requests, other.requests) == ([ENCODED], [ASK])


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        BadRequest("sampling_params.warmth: no", code="bad_field", param="sampling_params.warmth"),
        NotServing("every thread hangs", code="prompts_hang", retry_after=30.0),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
@pytest.mark.parametrize(
    ("path", "body"), [("/generate", ASK), ("/v1/chat/completions", CHAT | {"stream": True})]
)
async def test_a_refusal_reads_as_where_the_engine_gives_it(
    world: World, encoder: FakeEncoder, refusal: Exception, path: str, body: dict[str, Any]
) -> None:
    encoder.refusal = refusal
    async with world.client() as client:
        there = await client.post(path, json=body)
        await encodes_by(world, None)
        world.engine.steps.faults["prepare"] = refusal
        here = await client.post(path, json=body)
    assert (there.status_code, there.json()) == (here.status_code, here.json())
    assert there.headers.get("retry-after") == here.headers.get("retry-after")
    assert world.engine.requests == []


async def test_a_gate_that_lets_nobody_in_says_so_before_anybody_hears_what_is_wrong(
    world: World, encoder: FakeEncoder
) -> None:
    encoder.refusal = BadRequest("text: no", param="text")
    world.gate.seal("hotreload is stopping", code="stopping")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")


async def test_an_engine_that_is_lost_says_so(world: World, encoder: FakeEncoder) -> None:
    world.engine.steps.faults["prepare"] = EngineLost("the scheduler thread died")
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")


async def test_who_leaves_while_his_prompt_is_encoded_is_never_asked_for(
    world: World, encoder: FakeEncoder
) -> None:
    encoder.may_end.clear()
    _, writer = await world.ask_raw(ASK)
    await world.until(lambda: encoder.begun == 1)
    writer.close()
    assert world.worker is not None
    running = world.worker.counts.running
    await world.until(lambda: not running.total)
    encoder.may_end.set()
    await world.settle()
    assert world.engine.requests == []
