"""Pages of sites that [server] cors_origins names, and of those that it does not."""

import asyncio
from pathlib import Path

import pytest

from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import UNNAMED
from tests.server.test_keys import GOOD, over_tcp
from tests.server.world import World, serve
from tests.waiting import PATIENCE

CHAT = "https://chat.example.com"
PAGE = {"Origin": CHAT, "Sec-Fetch-Site": "cross-site"}
ASKS = {
    **PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os, no good\x7f",
}


def cors(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control")}


async def test_a_page_of_a_named_site_may_ask_and_read_the_answer(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, origins=[CHAT], tcp=True, keys=ApiKeys({GOOD: UNNAMED})) as world,
        over_tcp(world) as client,
    ):
        may = await client.options("/v1/chat/completions", headers=ASKS)
        answer = await client.post(
            "/generate", json={"text": "a"}, headers={**PAGE, "Authorization": f"Bearer {GOOD}"}
        )
        refused = await client.post("/generate", json={"text": "a"}, headers=PAGE)
    assert may.status_code == 204
    assert cors(dict(may.headers)) == {
        "access-control-allow-origin": CHAT,
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization, content-type, x-stainless-os",
        "access-control-expose-headers": "X-Hotreload-Generation, X-Hotreload-Fingerprint, "
        "X-Request-Id, Retry-After",
        "access-control-max-age": "600",
    }
    assert answer.status_code == 200
    assert refused.status_code == 401
    for each in (answer, refused):  # a page can read why it was refused
        assert each.headers["access-control-allow-origin"] == CHAT
        assert each.headers["vary"] == "Origin"
    assert len(world.engine.requests) == 1


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://chat.example.com", "null", CHAT + ":8443", ""]
)
async def test_a_page_of_any_other_site_is_told_nothing(tmp_path: Path, origin: str) -> None:
    async with serve(tmp_path, origins=[CHAT]) as world, world.client() as client:
        asked = await client.options("/generate", headers={**ASKS, "Origin": origin})
        got = await client.get("/status", headers={**PAGE, "Origin": origin})
        heard = await client.get("/events", headers={**PAGE, "Origin": origin})
    assert [cors(dict(each.headers)) for each in (asked, got, heard)] == [{}, {}, {}]
    assert (asked.status_code, heard.status_code) == (405, 403)


async def test_no_page_reaches_what_changes_what_is_live(tmp_path: Path) -> None:
    async with serve(tmp_path, origins=[CHAT]) as world, world.client() as client:
        for path in ("/admin/reload_weights", "/admin/rollback", "/webhook/huggingface"):
            asked = await client.options(path, headers=ASKS)
            assert (asked.status_code, cors(dict(asked.headers))) == (405, {})
        json = {"Content-Type": "application/json"}
        sent = await client.post("/admin/rollback", content=b"{}", headers={**PAGE, **json})
    assert (sent.status_code, cors(dict(sent.headers))) == (403, {})
    assert world.control.asked == []


async def test_a_page_of_a_named_site_hears_events(tmp_path: Path) -> None:
    async with serve(tmp_path, origins=[CHAT]) as world:
        reader, writer = await world.raw()
        head = f"Origin: {CHAT}\r\nSec-Fetch-Site: cross-site\r\n"
        writer.write(f"GET /events HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        told = await asyncio.wait_for(reader.readuntil(b": listening\n\n"), PATIENCE)
    assert f"access-control-allow-origin: {CHAT}".encode() in told.lower()


async def test_a_network_of_its_own_is_no_obstacle_to_a_named_site(tmp_path: Path) -> None:
    """Chromium asks before a page of the internet may reach an address of this network."""
    asks = {**ASKS, "Access-Control-Request-Private-Network": "true"}
    async with serve(tmp_path, origins=[CHAT]) as world, world.client() as client:
        may = await client.options("/generate", headers=asks)
    assert may.headers["access-control-allow-private-network"] == "true"


async def test_a_named_site_must_still_come_by_our_name(tmp_path: Path) -> None:
    async with serve(tmp_path, origins=[CHAT]) as world, world.client() as client:
        answer = await client.get("/status", headers={**PAGE, "Host": "evil.example"})
    assert answer.status_code == 421


async def test_without_origins_nothing_is_told(world: World) -> None:
    async with world.client() as client:
        asked = await client.options("/generate", headers=ASKS)
    assert (asked.status_code, cors(dict(asked.headers))) == (405, {})
