"""API keys over TCP: who shows none, or a wrong one, is answered by no route but health."""

import asyncio
import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hotreload.errors import ConfigError
from hotreload.server import keys
from hotreload.server.keys import FAILURES_TOLD_SECONDS as TELL_SECONDS
from hotreload.server.keys import KEYS_FRESH_SECONDS, ApiKeys, Failures
from tests.clock import Clock
from tests.server.world import World, serving
from tests.waiting import PATIENCE

GOOD, OTHER = "a-key-of-24-characters-1", "a-key-of-24-characters-2"
HELLO: Any = [{"role": "user", "content": "hello"}]


class Kept:
    """What a file of keys holds, or why it cannot be read."""

    def __init__(self, *keys: str) -> None:
        self.keys: Collection[str] | ConfigError = keys
        self.reads = 0
        self.answers = threading.Event()
        """Until then whoever reads it waits, as on a mount that hangs."""
        self.answers.set()
        self.clock = Clock()
        self.api = ApiKeys(self, self.clock)

    def __call__(self) -> Collection[str]:
        self.reads += 1
        self.answers.wait(PATIENCE)
        if isinstance(self.keys, ConfigError):
            raise self.keys
        return self.keys


def over_tcp(world: World, key: str | None = None, scheme: str = "Bearer") -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"{scheme} {key}"}
    address = f"http://127.0.0.1:{world.tcp_port}"
    return httpx.AsyncClient(base_url=address, timeout=PATIENCE, headers=headers)


async def test_over_tcp_a_key_opens_what_none_does_not(tmp_path: Path) -> None:
    async with serving(tmp_path, tcp=True, keys=Kept(GOOD, OTHER).api) as world:
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
        serving(tmp_path, tcp=True, keys=Kept(GOOD).api) as world,
        over_tcp(world) as client,
    ):
        paths = sorted({getattr(route, "path", "") for route in world.app.routes})
        for path in (*paths, "/nowhere", "//livez", "/livez/"):
            answer = await client.post(path, json={"text": "a"}, headers=headers)
            got = await client.get(path, headers=headers)
            if path in ("/livez", "/readyz", "/health", "/webhook/huggingface"):
                assert 401 not in (got.status_code, answer.status_code)
                continue
            assert (answer.status_code, got.status_code) == (401, 401), path
            assert answer.headers["www-authenticate"] == says
            assert "invalid_api_key" in answer.text
            assert GOOD not in answer.text
    assert world.engine.requests == []


async def test_the_unix_socket_asks_for_no_key(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=Kept(GOOD).api) as world, world.client() as client:
        assert (await client.post("/generate", json={"text": "a"})).status_code == 200


async def test_a_key_opens_no_admin_route(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, tcp=True, keys=Kept(GOOD).api) as world,
        over_tcp(world, GOOD) as client,
    ):
        assert (await client.post("/admin/rollback")).status_code == 403
    assert world.control.asked == []


async def test_openais_client_brings_its_key_and_hears_of_a_wrong_one(tmp_path: Path) -> None:
    async with serving(tmp_path, tcp=True, keys=Kept(GOOD).api) as world:
        address = f"http://127.0.0.1:{world.tcp_port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key=GOOD, max_retries=0) as client:
            await client.chat.completions.create(model="model", messages=HELLO)
        async with openai.AsyncOpenAI(base_url=address, api_key=OTHER, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(model="model", messages=HELLO)
    assert caught.value.code == "invalid_api_key"


async def test_a_file_that_changes_is_read_anew_and_one_that_breaks_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept(GOOD)
    kept.keys = (OTHER,)
    assert (await kept.api.admit(GOOD), kept.reads) == (True, 1)  # too soon to look again
    kept.clock.now += KEYS_FRESH_SECONDS
    assert [await kept.api.admit(key) for key in (GOOD, OTHER)] == [False, True]
    assert kept.reads == 2
    kept.keys = ConfigError("api-keys: holds no key")
    for _ in range(2):
        kept.clock.now += KEYS_FRESH_SECONDS
        assert [await kept.api.admit(key) for key in (GOOD, OTHER)] == [False, True]
    faults = [each.message for each in caplog.records if each.levelno >= logging.ERROR]
    assert faults == ["api_keys.unreadable"]
    kept.keys = (GOOD,)
    kept.clock.now += KEYS_FRESH_SECONDS
    assert [await kept.api.admit(key) for key in (GOOD, OTHER)] == [True, False]


async def test_a_file_that_hangs_holds_up_nobody_and_counts_once_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "KEYS_READ_SECONDS", 0.05)
    kept = Kept(GOOD)
    kept.answers.clear()
    kept.keys = (OTHER,)
    for _ in range(3):
        kept.clock.now += KEYS_FRESH_SECONDS
        assert await kept.api.admit(GOOD)
    assert kept.reads == 2  # the one at the start, and the one that hangs
    kept.answers.set()
    async with asyncio.timeout(PATIENCE):
        while await kept.api.admit(GOOD):  # noqa: ASYNC110 it has no event
            await asyncio.sleep(0)
    assert await kept.api.admit(OTHER)


def test_no_key_is_kept_as_it_is() -> None:
    assert GOOD not in repr(vars(Kept(GOOD).api))


def test_failures_are_told_with_their_rate_and_without_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failures = Failures(clock)
    scope = {"client": ("10.0.0.7", 4711), "headers": [(b"authorization", b"Bearer guess")]}
    for _ in range(100):
        failures.count(scope)
    clock.now += TELL_SECONDS
    failures.count({"client": ("10.0.0.8", 1)})
    first, second = [vars(record) for record in caplog.records]
    assert first["levelno"] == logging.WARNING
    assert (first["requests"], first["from"]) == (1, ["10.0.0.7"])
    assert (second["requests"], second["from"]) == (100, ["10.0.0.7", "10.0.0.8"])
    assert second["within_seconds"] == TELL_SECONDS
    assert "guess" not in json.dumps([first, second], default=str)
