"""Limits of named API keys: requests under way and tokens a minute, counted by the name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hotreload.errors import BadRequest
from hotreload.picture.picture import KeyFigures
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.problems import Refused
from hotreload.server.key_limits import KeyLimits
from hotreload.server_limits import UNNAMED, KeyTerms
from tests.clock import Clock
from tests.fake_answers import FOR_EVER
from tests.server.test_keys import GOOD, OTHER, over_tcp
from tests.server.world import World, serve

ADMIN = "an-admin-key-of-24-chars"
ONE_AT_A_TIME = KeyTerms("evals", requests=1)
FEW_TOKENS = KeyTerms("evals", tokens_per_minute=60)
OF_AN_ANSWER = 7 + 4
"""Tokens of the prompt and of the answer, as the engine of these tests counts them."""
BODIES = {
    "/generate": {"text": "a"},
    "/v1/completions": {"model": "model", "prompt": "a"},
    "/": {"inputs": "a"},
}
ENDLESS = {"text": FOR_EVER, "stream": True}


@asynccontextmanager
async def limited(folder: Path, terms: KeyTerms, **more: Any) -> AsyncIterator[tuple[World, Clock]]:
    """A server with a key of these terms, one without a name, and an admin key."""
    keys, clock = ApiKeys({GOOD: terms, OTHER: UNNAMED}), Clock()
    admin_keys = ApiKeys({ADMIN: UNNAMED})
    limits = KeyLimits([keys, admin_keys], clock)
    async with serve(
        folder, tcp=True, keys=keys, admin_keys=admin_keys, key_limits=limits, **more
    ) as world:
        yield world, clock


def figures(world: World) -> KeyFigures:
    return world.rules.key_limits.figures()["evals"]


@pytest.mark.parametrize("path", BODIES)
async def test_one_request_too_many_is_refused_in_the_words_of_its_route(
    tmp_path: Path, path: str
) -> None:
    async with limited(tmp_path, ONE_AT_A_TIME) as (world, _), over_tcp(world, GOOD) as client:
        body = BODIES[path]
        async with client.stream("POST", "/generate", json=ENDLESS) as first:
            await anext(first.aiter_lines())
            refused = await client.post(path, json=body)
            for key in (OTHER, ADMIN):  # whose limits are none
                async with over_tcp(world, key) as another:
                    assert (await another.post(path, json=body)).status_code == 200
            async with world.client() as local:
                assert (await local.post(path, json=body)).status_code == 200
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        told = refused.json()
        fault = told.get("error") if path.startswith("/v1") else told
        assert fault["code"] == "rate_limit_exceeded"
        words = fault.get("message") or fault["detail"]
        assert "1 of 1 requests of this key are under way (requests of 'evals'" in words
        assert told.get("error_type") == ("overloaded" if path == "/" else None)
        await world.until(lambda: world.gate.inside == 0)
        await world.settle()
        assert (await client.post(path, json=body)).status_code == 200
        assert figures(world) == KeyFigures(2, 1, 0, figures(world).tokens)


async def test_openais_client_takes_it_for_a_limit_of_rate(tmp_path: Path) -> None:
    async with limited(tmp_path, FEW_TOKENS) as (world, _), over_tcp(world, GOOD) as client:
        for _ in range(6):
            assert (await client.post("/generate", json={"text": "a"})).status_code == 200
        address = f"http://127.0.0.1:{world.tcp_port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key=GOOD, max_retries=0) as client_of:
            with pytest.raises(openai.RateLimitError) as caught:
                await client_of.completions.create(model="model", prompt="a")
    assert caught.value.code == "rate_limit_exceeded"


async def test_tokens_of_prompts_and_answers_are_paid_for_with_the_time(tmp_path: Path) -> None:
    async with limited(tmp_path, FEW_TOKENS) as (world, clock), over_tcp(world, GOOD) as client:

        async def ask(**fields: Any) -> httpx.Response:
            return await client.post("/generate", json={"text": "a", **fields})

        for _ in range(6):
            assert (await ask()).status_code == 200
        refused = await ask()  # 66 tokens are used, and 60 are allowed
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
        assert "60 tokens a minute (tokens_per_minute of 'evals'" in refused.json()["detail"]
        clock.now += 6.5
        assert (await ask(stream=True)).status_code == 200
        assert (await ask()).status_code == 429
        assert figures(world) == KeyFigures(7, 0, 2, 7 * OF_AN_ANSWER)
        clock.now += 3600
        assert (await ask(sampling_params={"n": 3})).status_code == 200  # its prompt counts once
        assert figures(world).tokens == 7 * OF_AN_ANSWER + 7 + 3 * 4


async def test_an_endless_answer_is_counted_while_it_goes_on(tmp_path: Path) -> None:
    """A limit that counted ended answers alone would be none for long ones."""
    terms = replace(FEW_TOKENS, tokens_per_minute=OF_AN_ANSWER)
    async with limited(tmp_path, terms) as (world, _), over_tcp(world, GOOD) as client:
        async with client.stream("POST", "/generate", json=ENDLESS) as first:
            lines = first.aiter_lines()
            while "served by step 1" not in await anext(lines):
                pass
            assert (await client.post("/generate", json={"text": "a"})).status_code == 429
        await world.until(lambda: world.gate.inside == 0)


async def test_what_fails_gives_its_place_back(tmp_path: Path) -> None:
    async with limited(tmp_path, ONE_AT_A_TIME) as (world, _), over_tcp(world, GOOD) as client:
        world.engine.steps.faults["prepare"] = BadRequest("too long")
        assert (await client.post("/generate", json={"text": "a"})).status_code == 400
        del world.engine.steps.faults["prepare"]
        assert (await client.post("/generate", json={"text": "a"})).status_code == 200


async def test_the_log_names_the_key_and_no_line_holds_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        limited(tmp_path, ONE_AT_A_TIME, access_log=True) as (world, _),
        over_tcp(world, GOOD) as named,
        over_tcp(world, OTHER) as unnamed,
    ):
        for client in (named, unnamed):
            assert (await client.post("/generate", json={"text": "a"})).status_code == 200
        assert (await named.get("/status")).status_code == 200
    lines = [vars(each) for each in caplog.records if each.message == "request.answered"]
    assert [line.get("key") for line in lines] == ["evals", None, "evals"]
    assert not any(key in str(vars(each)) for key in (GOOD, OTHER) for each in caplog.records)


def test_another_key_of_the_name_and_another_limit_leave_what_is_counted() -> None:
    clock = Clock()
    keys = ApiKeys({GOOD: replace(FEW_TOKENS, requests=2)})
    limits = KeyLimits([keys], clock)
    with limits.hold("evals", 1) as count:
        count.answers[0] = 90
        assert keys.replace({OTHER: replace(FEW_TOKENS, requests=1)})
        with pytest.raises(Refused, match="1 of 1 requests of this key"), limits.hold("evals", 1):
            pass
    assert keys.replace({OTHER: replace(FEW_TOKENS, tokens_per_minute=30)})
    with pytest.raises(Refused) as caught, limits.hold("evals", 1):
        pass
    assert caught.value.retry_after == 121
    assert limits.figures() == {"evals": KeyFigures(1, 1, 1, 90)}
    assert keys.replace({OTHER: UNNAMED})
    assert limits.figures() == {}
