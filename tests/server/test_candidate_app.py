"""The address at which a command asks new weights and the live ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.core.way_in.entrance import Entrance
from hotreload.events import Events
from hotreload.server.candidate_app import create_candidate_app, serve_at_loopback
from hotreload.server_limits import Limits
from hotreload.types import Generation, Lease, Staged
from tests.fake_answers import FOR_EVER
from tests.fakes import FakeEngine, FakeWeights, Steps
from tests.server.world import FIRST, LEAVES
from tests.waiting import PATIENCE, turn_until

TOKEN = "a-token-of-one-run"
ASK = {"prompt": "Who serves?", "max_tokens": 8}


@dataclass
class Asked:
    """What a command has: an address, and an engine behind it."""

    url: str
    app: FastAPI
    engine: FakeEngine
    staged: Staged

    def client(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)


@asynccontextmanager
async def serve_candidate() -> AsyncIterator[Asked]:
    engine = FakeEngine(Steps(), FIRST.revision, LEAVES)
    entrance = Entrance[FakeEngine](Events().publish)
    entrance.gates[0].open(Lease(FIRST, engine, engine.live))
    staged = engine._spare(engine.set_of(FIRST.revision, FakeWeights("new words")))
    candidate = Generation(0, staged.revision, staged.fingerprint, 1.0, staged.leaves)
    limits = Limits()
    async with engine.as_candidate(staged):
        lease = Lease(candidate, engine, staged)
        app = create_candidate_app(lease, entrance, limits=limits, token=TOKEN)
        async with serve_at_loopback(app, limits) as url:
            yield Asked(url, app, engine, staged)


async def text_of(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/completions", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_each_model_is_answered_by_its_weights_on_one_address() -> None:
    async with serve_candidate() as asked, asked.client() as client:
        new, live = (
            await text_of(client, model="candidate"),
            await text_of(client, model="live"),
        )
        assert new["choices"][0]["text"] == "new words clean"
        assert live["choices"][0]["text"] == f"{FIRST.revision.id} clean"
        assert (new["model"], live["model"]) == ("candidate", "live")
        chat = {"messages": [{"role": "user", "content": "Who?"}], "model": "candidate"}
        answer = (await client.post("/v1/chat/completions", json=chat)).json()
        assert answer["choices"][0]["message"]["content"] == "new words clean"
        models = (await client.get("/v1/models")).json()["data"]
    assert [each["id"] for each in models] == ["candidate", "live"]
    prints = [each["hotreload"]["fingerprint"] for each in models]
    assert prints == [asked.staged.fingerprint, FIRST.fingerprint]


@pytest.mark.parametrize("token", [None, "another-token", TOKEN[:-1], f"{TOKEN}x"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
async def test_who_shows_another_token_or_none_is_answered_401(
    token: str | None, path: str
) -> None:
    async with serve_candidate() as asked, asked.client(token) as client:
        answer = await client.request("POST" if "comp" in path else "GET", path, json=ASK)
        assert answer.status_code == 401
        assert asked.engine.requests == []


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "another"}, 404), ({"prompt": 7}, 400), ({"no_such_field": 1}, 400)],
)
async def test_what_is_wrong_is_said_in_openais_words(body: dict[str, Any], status: int) -> None:
    async with serve_candidate() as asked, asked.client() as client:
        answer = await client.post("/v1/completions", json=ASK | {"model": "live"} | body)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        nonsense = await client.post("/v1/completions", content=b"[1, 2]")
        assert nonsense.status_code == 400


async def test_nothing_of_the_daemons_own_routes_is_there() -> None:
    async with serve_candidate() as asked, asked.client() as client:
        for path in ("/status", "/admin/reload_status", "/metrics", "/generate", "/livez"):
            assert (await client.get(path)).status_code == 404


async def test_a_streamed_answer_comes_in_pieces() -> None:
    async with serve_candidate() as asked, asked.client() as client:
        answer = await client.post(
            "/v1/completions", json=ASK | {"model": "candidate", "stream": True}
        )
    assert answer.text.count("data: ") > 2
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_at_the_end_it_is_gone_and_what_is_under_way_with_it() -> None:
    async with serve_candidate() as asked:
        client = asked.client()
        endless = {"model": "candidate", "prompt": FOR_EVER, "stream": True}
        asking_on = asyncio.create_task(client.post("/v1/completions", json=endless))
        await turn_until(lambda: asked.engine.under_way[asked.staged] == 1)
    with pytest.raises(httpx.HTTPError):
        await asking_on
    assert asked.engine.under_way[asked.staged] == 0
    with pytest.raises(httpx.ConnectError):
        await client.get("/v1/models")
    await client.aclose()


async def test_at_the_end_nobody_is_left_who_has_an_engine_to_give_back() -> None:
    """Not even who hears of no client that is gone, and needs a moment when it is cancelled."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            over.set()
        raise AssertionError("nobody sets that")

    async with serve_candidate() as asked, asked.client() as client:
        asked.app.router.routes.append(Route("/slow", slow))
        asking_on = asyncio.create_task(client.get("/slow"))
        await begun.wait()
    assert over.is_set()
    with pytest.raises(httpx.HTTPError):
        await asking_on
