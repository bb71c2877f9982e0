"""API keys over TCP: health and load are for all, every other route for who shows a good one."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hotreload.server.http.keys import FAILURE_LOG_SECONDS as PUBLISH_SECONDS
from hotreload.server.http.keys import ApiKeys, FailureLog
from hotreload.server_limits import UNNAMED
from tests.clock import Clock
from tests.server.world import World, serve
from tests.waiting import PATIENCE

GOOD, OTHER = "a-key-of-24-characters-1", "a-key-of-24-characters-2"
HELLO: Any = [{"role": "user", "content": "hello"}]


def over_tcp(world: World, key: str | None = None, scheme: str = "Bearer") -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"{scheme} {key}"}
    address = f"http://127.0.0.1:{world.tcp_port}"
    return httpx.AsyncClient(base_url=address, timeout=PATIENCE, headers=headers)


async def test_over_tcp_a_key_opens_what_none_does_not(tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True, keys=ApiKeys({GOOD: UNNAMED, OTHER: UNNAMED})) as world:
        for key in (GOOD, OTHER):
            async with over_tcp(world, key) as client:
                assert (await client.post("/generate", json={"text": "a"})).status_code == 200
        for client in (over_tcp(world, GOOD, "bearer"), over_tcp(world, f"  {GOOD}")):
            async with client:
                assert (await client.get("/status")).status_code == 200


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, 'Bearer realm="hotreload"'),
        ("Bearer", 'Bearer realm="hotreload"'),
        (f"Basic {GOOD}", 'Bearer realm="hotreload"'),
        (f"Bearer {GOOD}x", 'Bearer realm="hotreload", error="invalid_token"'),
        (f"Bearer {GOOD[:-1]}", 'Bearer realm="hotreload", error="invalid_token"'),
        ("Bearer Grüße".encode(), 'Bearer realm="hotreload", error="invalid_token"'),
    ],
)
async def test_without_a_good_key_nothing_is_answered_and_nothing_reaches_the_engine(
    tmp_path: Path, header: Any, says: str
) -> None:
    headers = httpx.Headers([] if header is None else [(b"Authorization", header)])
    async with (
        serve(tmp_path, tcp=True, keys=ApiKeys({GOOD: UNNAMED})) as world,
        over_tcp(world) as client,
    ):
        paths = sorted({getattr(route, "path", "") for route in world.app.routes})
        for path in (*paths, "/nowhere", f"http://127.0.0.1:{world.tcp_port}//livez", "/livez/"):
            answer = await client.post(path, json={"text": "a"}, headers=headers)
            got = await client.get(path, headers=headers)
            if path in ("/livez", "/readyz", "/health", "/metrics", "/webhook/huggingface"):
                assert 401 not in (got.status_code, answer.status_code)
                continue
            if path in ("/", "/page/{name}"):  # the page asks for the key
                assert (answer.status_code, got.status_code == 401) == (401, False), path
                continue
            assert (answer.status_code, got.status_code) == (401, 401), path
            assert answer.headers["www-authenticate"] == says
            assert "invalid_api_key" in answer.text
            assert GOOD not in answer.text
    assert world.engine.requests == []


async def test_the_unix_socket_asks_for_no_key(tmp_path: Path) -> None:
    async with serve(tmp_path, keys=ApiKeys({GOOD: UNNAMED})) as world, world.client() as client:
        assert (await client.post("/generate", json={"text": "a"})).status_code == 200


async def test_a_key_opens_no_admin_route(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, tcp=True, keys=ApiKeys({GOOD: UNNAMED})) as world,
        over_tcp(world, GOOD) as client,
    ):
        assert (await client.post("/admin/rollback")).status_code == 403
    assert world.control.asked == []


async def test_openais_client_brings_its_key_and_hears_of_a_wrong_one(tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True, keys=ApiKeys({GOOD: UNNAMED})) as world:
        address = f"http://127.0.0.1:{world.tcp_port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key=GOOD, max_retries=0) as client:
            await client.chat.completions.create(model="model", messages=HELLO)
        async with openai.AsyncOpenAI(base_url=address, api_key=OTHER, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(model="model", messages=HELLO)
    assert caught.value.code == "invalid_api_key"


def test_no_key_is_kept_as_it_is() -> None:
    assert GOOD not in repr(vars(ApiKeys({GOOD: UNNAMED})))


def test_failures_are_told_with_their_rate_and_without_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failures = FailureLog(clock)
    scope = {"client": ("10.0.0.7", 4711), "headers": [(b"authorization", b"Bearer guess")]}
    for _ in range(100):
        failures.count(scope)
    clock.now += PUBLISH_SECONDS
    failures.count({"client": ("10.0.0.8", 1)})
    first, second = [vars(record) for record in caplog.records]
    assert first["levelno"] == logging.WARNING
    assert (first["requests"], first["from"]) == (1, ["10.0.0.7"])
    assert (second["requests"], second["from"]) == (100, ["10.0.0.7", "10.0.0.8"])
    assert second["within_seconds"] == PUBLISH_SECONDS
    assert "guess" not in json.dumps([first, second], default=str)
