"""Several answers to one prompt, by every route that has them: POST /generate here."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotreload.server_limits import Limits
from tests.server.world import World, serve


async def ask(world: World, **body: Any) -> tuple[int, Any]:
    async with world.client() as client:
        answer = await client.post("/generate", json=body)
    return answer.status_code, answer.json()


async def test_n_answers_come_in_a_list_of_one_generation_each_prompts_together(
    world: World,
) -> None:
    status, answers = await ask(world, text=["a", "b"], sampling_params={"n": 3})
    assert (status, len(answers)) == (200, 6)
    assert {each["meta_info"]["generation"] for each in answers} == {1}
    assert world.engine.requests == [{"text": ["a", "b"], "sampling_params": {}, "copies": 3}]


async def test_a_stream_of_n_answers_names_each_by_its_index(world: World) -> None:
    async with world.client() as client:
        body = {"text": "a", "stream": True, "sampling_params": {"n": 2}}
        told = (await client.post("/generate", json=body)).text
    *pieces, done = [line.removeprefix("data: ") for line in told.splitlines() if line]
    last = {each["index"]: each["text"] for each in map(json.loads, pieces)}
    assert (last, done) == ({0: "served by step 1", 1: "served by step 1"}, "[DONE]")


@pytest.mark.parametrize("n", [None, 1])
async def test_one_answer_is_no_list(world: World, n: int | None) -> None:
    status, answer = await ask(world, text="a", sampling_params={"n": n})
    assert (status, answer["text"]) == (200, "served by step 1")
    assert world.engine.requests == [{"text": "a", "sampling_params": {}}]


async def test_prompts_with_parameters_of_their_own_have_one_n_together(world: World) -> None:
    same = [{"n": 2, "temperature": 0.5}, {"n": 2}]
    assert (await ask(world, text=["a", "b"], sampling_params=same))[0] == 200
    assert world.engine.requests[0]["sampling_params"] == [{"temperature": 0.5}, {}]
    status, problem = await ask(world, text=["a", "b"], sampling_params=[{"n": 2}, {}])
    assert (status, problem["code"]) == (400, "bad_field")
    assert "sampling_params.n: must be the same for each prompt" in problem["detail"]


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, True, "2"])
async def test_an_n_that_is_none_is_refused_by_its_name(world: World, n: Any) -> None:
    status, problem = await ask(world, text="a", sampling_params={"n": n})
    assert (status, problem["code"]) == (400, "bad_field")
    assert "sampling_params.n must be a whole number from 1 to 128" in problem["detail"]


async def test_n_counts_against_the_bound_of_a_batch(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(batch=3)) as world:
        assert (await ask(world, text="a", sampling_params={"n": 3}))[0] == 200
        status, problem = await ask(world, text=["a", "b"], sampling_params={"n": 2})
    assert (status, problem["code"]) == (400, "batch_too_big")
