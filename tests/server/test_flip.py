"""Answers while two generations answer side by side: each is made whole by the one it names."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hotreload.types import Generation, Lease, Revision
from tests.fakes import HANG, unread
from tests.server.world import World, serve

STREAM: dict[str, Any] = {"text": "hi", "stream": True}


async def flip(world: World, to: str, number: int) -> None:
    """Have new weights answer those who come, as the core does."""
    engine = world.engine
    staged = await engine.stage(unread(Revision(to)))
    await engine.flip(staged)
    live = Generation(number, staged.revision, staged.fingerprint, 0.0)
    world.gate.change(Lease(live, engine, staged))


async def test_a_stream_that_began_before_a_flip_ends_as_it_began(tmp_path: Path) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        engine = world.engine
        engine.speaks_for_itself()
        first = world.gate.list_answering()[0].generation
        world.gate.change(Lease(first, engine, engine.live))
        engine.may_answer.clear()
        async with client.stream("POST", "/generate", json=STREAM) as old:
            lines = old.aiter_lines()
            said = [await anext(lines)]
            await flip(world, "new", 2)
            assert [each.requests for each in world.gate.list_answering()] == [0, 1]
            engine.may_answer.set()
            said += [line async for line in lines]
            young = (await client.post("/generate", json={"text": "hi"})).json()
    told = [json.loads(line[6:]) for line in said if line.startswith("data: {")]
    assert told[-1]["text"] == f"{first.revision.id} clean"
    assert {each["meta_info"]["generation"] for each in told} == {1}
    assert (young["text"], young["meta_info"]["generation"]) == ("new clean", 2)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_is_aborted_under_old_weights_before_it_said_anything_runs_on_the_new(
    tmp_path: Path, is_stream: bool
) -> None:
    async with serve(tmp_path, replay=True) as world, world.client() as client:
        engine = world.engine
        engine.speaks_for_itself()
        await flip(world, "new", 2)
        engine.swaps_ahead = 1
        answer = await client.post("/generate", json={"text": "hi", "stream": is_stream})
    assert answer.headers["x-hotreload-generation"] == "2"
    assert "new clean" in answer.text


async def test_the_generation_it_was_let_in_under_answers_whenever_the_engine_is_reached(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        engine = world.engine
        engine.speaks_for_itself()
        first = world.gate.list_answering()[0].generation
        world.gate.change(Lease(first, engine, engine.live))
        engine.steps.faults["generate"] = HANG
        asking = asyncio.create_task(client.post("/generate", json={"text": "hi"}))
        await engine.steps.entered["generate"].wait()
        await flip(world, "new", 2)
        engine.steps.released["generate"].set()
        answer = (await asking).json()
    assert answer["text"] == f"{first.revision.id} clean"
    assert answer["meta_info"]["generation"] == 1
