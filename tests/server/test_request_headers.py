"""The headers by which a request asks for the weights it began with."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hotreload.events import GenerationLive
from hotreload.features.sessions.sessions import Sessions
from hotreload.types import Lease, Staged
from tests.server.test_openai import client_of
from tests.server.world import FIRST, SECOND, World, serve

ASKS = [
    ("/generate", {"text": "hi"}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/", {"inputs": "hi"}),
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server whose engine overlaps, and that heeds conversations."""
    async with serve(tmp_path) as world:
        world.admission(Sessions).keep = 60.0
        world.gate.open(go_live_beside(world, FIRST))
        yield world


def go_live_beside(world: World, generation: Any) -> Lease[Any]:
    made = Staged(generation.revision, world.engine.live.weights, generation.fingerprint, {}, 0)
    world.engine.old.append(made)
    return Lease(generation, world.engine, made)


async def ask(
    world: World, headers: dict[str, str], path: str = "/generate", body: Any = None
) -> httpx.Response:
    async with world.client() as client:
        return await client.post(path, json=body or {"text": "hi"}, headers=headers)


async def says(world: World, headers: dict[str, str]) -> str:
    answer = await ask(world, headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Hotreload-Generation"]


@pytest.mark.parametrize(
    "header",
    ["x-session-affinity", "x-multi-turn-session-id", "X-Session-ID", "X-SMG-Routing-Key"],
)
async def test_each_header_that_names_a_conversation_holds_it_together(
    world: World, header: str
) -> None:
    old = {header: "one"}
    assert await says(world, old) == "1"
    world.gate.change(go_live_beside(world, SECOND))
    assert await says(world, old) == "1"
    assert await says(world, {header: "another"}) == "2"
    assert await says(world, {header: ""}) == "2"
    assert await says(world, {}) == "2"


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_every_route_to_the_model_heeds_them(world: World, path: str, body: Any) -> None:
    for stream in (False, True):
        session = {"x-session-affinity": f"{path} {stream}"}
        wish = {**body, "stream": stream}
        begun = go_live_beside(world, FIRST)
        world.gate.change(begun)
        assert (await ask(world, session, path, wish)).status_code == 200
        world.gate.change(go_live_beside(world, SECOND))
        again = await ask(world, session, path, wish)
        assert (again.status_code, again.headers["X-Hotreload-Generation"]) == (200, "1")
        assert again.headers["X-Hotreload-Fingerprint"] == "fp-1"
        assert begun.weights is not None
        world.gate.turn_out(begun.weights)
        assert (await ask(world, session, path, wish)).status_code == 409


async def test_who_sends_back_what_an_answer_carried_is_answered_by_the_same(world: World) -> None:
    first = await ask(world, {})
    carried = {
        name: first.headers[name] for name in ("X-Hotreload-Generation", "X-Hotreload-Fingerprint")
    }
    assert carried == {"X-Hotreload-Generation": "1", "X-Hotreload-Fingerprint": "fp-1"}
    carried["X-Hotreload-Weight-Version"] = first.json()["meta_info"]["weight_version"]
    async with world.entrance.admit():
        world.gate.change(go_live_beside(world, SECOND))
        world.events.publish(GenerationLive(SECOND))
        for name, value in carried.items():
            assert await says(world, {name: value}) == "1"
    for name, value in carried.items():
        refused = await ask(world, {name: value})
        assert (refused.status_code, refused.json()["code"]) == (409, "generation_gone")
        assert "generation 2, fingerprint fp-2, weight_version 2" in refused.json()["detail"]
        assert refused.headers["X-Hotreload-Generation"] == "2"
        assert refused.headers["x-should-retry"] == "false"
        assert "Retry-After" not in refused.headers


async def test_openais_client_does_not_ask_again_in_vain(world: World) -> None:
    async with client_of(world) as client:
        with pytest.raises(openai.ConflictError) as gone:
            await client.with_options(max_retries=2).completions.create(
                model="model", prompt="hi", extra_headers={"X-Hotreload-Fingerprint": "fp-0"}
            )
    assert gone.value.code == "generation_gone"
    await world.settle()
    assert [code for _, code in world.metrics.finished] == [409]


@pytest.mark.parametrize("number", ["seven", "-1", "1.5", "9" * 20])
async def test_what_is_no_number_of_a_generation_is_named(world: World, number: str) -> None:
    refused = await ask(world, {"X-Hotreload-Generation": number})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_field")
    assert "X-Hotreload-Generation" in refused.json()["detail"]


async def test_where_conversations_are_not_looked_at_their_headers_mean_nothing(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path) as world:
        assert await says(world, {"X-Session-ID": "one"}) == "1"
        world.go_live(SECOND)
        assert await says(world, {"X-Session-ID": "one"}) == "2"
