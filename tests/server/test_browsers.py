"""What pages of other sites try through the browser of somebody who may ask."""

from pathlib import Path

import pytest

from tests.server.world import World, serve

BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", "Sec-Fetch-Site": "same-origin"}
OURS = [
    "localhost:8000",
    "127.0.0.1:8000",
    "[::1]:8000",
    "tpu-host",
    "me.localhost",
    "llm.example.com",
]
STRANGE = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "a/b@c.example",
    "llm.example.com.",
]


@pytest.mark.parametrize("host", OURS)
async def test_a_browser_that_comes_by_our_name_is_served(tmp_path: Path, host: str) -> None:
    async with serve(tmp_path, hosts=["LLM.example.com"]) as world, world.client() as client:
        answer = await client.get("/status", headers={**BROWSER, "Host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize("host", STRANGE)
async def test_a_browser_that_comes_by_a_strange_name_is_refused(world: World, host: str) -> None:
    """Its owner may let the name mean this machine, and then reads what the page may read."""
    async with world.client() as client:
        for route in ("/status", "/leaves", "/metrics", "/"):
            answer = await client.get(route, headers={**BROWSER, "Host": host})
            assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
    assert "[server] hosts" in answer.json()["detail"]


async def test_a_client_that_is_no_browser_may_use_any_name(world: World) -> None:
    async with world.client() as client:
        answer = await client.get("/status", headers={"Host": "anything.example"})
    assert answer.status_code == 200
