"""A client that has seen a generation asks for that one or a later one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.way_in.gate import Gate
from hotreload.errors import NotNewEnough, NotServing
from hotreload.server_limits import Limits
from hotreload.types import Lease
from tests.server.world import FIRST, SECOND, World, answer_on, serve

HEADER = "X-Hotreload-Min-Generation"
ASK: dict[str, Any] = {"text": "hi"}
QUICK = Limits(generation_seconds=0.05)


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/generate", ASK),
        ("/generate", ASK | {"stream": True}),
        ("/v1/completions", {"prompt": "a"}),
    ],
)
async def test_a_request_waits_until_the_generation_it_asks_for_answers(
    world: World, path: str, ask: dict[str, Any]
) -> None:
    async with world.client() as client:
        asking = asyncio.create_task(client.post(path, json=ask | {"min_generation": 2}))
        await world.until(lambda: world.gate.awaiting == 1)
        assert world.engine.requests == []
        world.go_live(SECOND)
        answer = await asking
    assert answer.status_code == 200
    assert answer.headers["x-hotreload-generation"] == "2"
    assert "min_generation" not in world.engine.requests[0]
    assert world.gate.awaiting == 0


async def test_one_that_is_live_already_answers_at_once(world: World) -> None:
    async with world.client() as client:
        for wanted in ("0", "1"):
            answer = await client.post("/generate", json=ASK, headers={HEADER: wanted})
            assert answer.status_code == 200


async def test_the_header_and_the_field_are_both_kept(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=QUICK) as world, world.client() as client:
        ask = ASK | {"min_generation": 1}
        answer = await client.post("/generate", json=ask, headers={HEADER: "2"})
    assert answer.status_code == 409


async def test_what_does_not_come_in_time_is_a_409_that_says_what_is_live(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=QUICK) as world, world.client() as client:
        answer = await client.post("/generate", json=ASK | {"min_generation": 7})
        openai = await client.post("/v1/completions", json={"prompt": "a", "min_generation": 7})
        assert (world.gate.awaiting, world.gate.inside) == (0, 0)
    assert (answer.status_code, answer.json()["code"]) == (409, "generation_not_live")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert "generation 7 was asked for" in answer.json()["detail"]
    assert "1 is live" in answer.json()["detail"]
    assert answer.headers["x-hotreload-generation"] == "1"
    assert (openai.status_code, openai.json()["error"]["code"]) == (409, "generation_not_live")
    assert int(openai.headers["retry-after"]) >= 1
    assert world.engine.requests == []


@pytest.mark.parametrize("wanted", ["two", "-1", "1.5", "", "9" * 40, "²"])
async def test_a_header_that_is_no_number_is_a_400(world: World, wanted: str) -> None:
    async with world.client() as client:
        answer = await client.post(
            "/generate", json=ASK, headers={HEADER.encode(): wanted.encode()}
        )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_field")
    assert HEADER in answer.json()["detail"]


async def test_a_client_that_leaves_frees_its_place(world: World) -> None:
    _, writer = await world.ask_raw(ASK | {"min_generation": 2})
    await world.until(lambda: world.gate.awaiting == 1)
    writer.close()
    await world.until(lambda: world.gate.awaiting == 0)
    world.go_live(SECOND)
    assert world.engine.requests == []


async def test_those_who_wait_are_bounded(world: World) -> None:
    world.gate.max_held = 1
    reader, _ = await world.ask_raw(ASK | {"min_generation": 2})
    await world.until(lambda: world.gate.awaiting == 1)
    async with world.client() as client:
        second = await client.post("/generate", json=ASK | {"min_generation": 2})
        other = await client.post("/generate", json=ASK)
    assert (second.status_code, second.json()["code"]) == (503, "too_many_awaiting")
    assert second.headers["retry-after"] == "1"
    assert other.status_code == 200
    world.go_live(SECOND)
    assert (await answer_on(reader))[0] == 200


async def test_those_who_wait_hold_up_no_swap(world: World) -> None:
    reader, _ = await world.ask_raw(ASK | {"min_generation": 2})
    await world.until(lambda: world.gate.awaiting == 1)
    world.gate.hold()
    await world.gate.wait_until_empty(5)
    world.open(FIRST)  # rolled back: still not good enough
    await asyncio.sleep(0)
    assert world.gate.awaiting == 1
    world.go_live(SECOND)
    _, headers, _ = await answer_on(reader)
    assert headers["x-hotreload-generation"] == "2"


async def test_those_who_wait_are_told_when_the_gate_is_sealed(world: World) -> None:
    reader, _ = await world.ask_raw(ASK | {"min_generation": 2})
    await world.until(lambda: world.gate.awaiting == 1)
    world.gate.seal("the engine is lost", code="engine_lost")
    status, _, problem = await answer_on(reader)
    assert (status, problem["code"]) == (503, "engine_lost")


async def test_at_the_gate_itself_a_newer_generation_is_good_and_an_older_is_not() -> None:
    gate = Gate[str](publish=lambda event: None)
    gate.open(Lease(SECOND, "engine"))
    async with gate.admit(at_least=1) as lease:
        assert lease.generation is SECOND
    with pytest.raises(NotNewEnough, match="generation 3 was asked for"):
        async with gate.admit(at_least=3, within=0.01):
            pytest.fail("it passed")
    gate.seal("over")
    with pytest.raises(NotServing):
        async with gate.admit(at_least=3, within=0.01):
            pytest.fail("it passed")


async def test_one_who_waited_does_not_slip_in_when_the_gate_closes_again_at_once() -> None:
    gate = Gate[str](publish=lambda event: None)
    gate.open(Lease(FIRST, "engine"))

    async def ask() -> int:
        async with gate.admit(at_least=2, within=10) as lease:
            return lease.generation.number

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    gate.open(Lease(SECOND, "engine"))
    gate.hold()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (gate.awaiting, gate.inside, asking.done()) == (1, 0, False)
    gate.open(Lease(SECOND, "engine"))
    assert await asking == 2
