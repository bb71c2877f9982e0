"""Admin keys: who shows one over TCP may use the admin routes, and what an API key opens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from hotreload.attempts import By
from hotreload.json_fields import by_fields
from hotreload.picture.words import describe_order
from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import UNNAMED
from tests.server.test_sglang import GUARDED
from tests.server.world import World, attempt, serve
from tests.waiting import PATIENCE

ADMIN, API = "an-admin-key-of-24-chars", "a-key-of-24-characters-1"
ASKED = {"Authorization": f"Bearer {ADMIN}"}
PAGE = {"Origin": "http://localhost:8000", "Content-Type": "application/json"}


def keys_of(*keys: str) -> ApiKeys:
    return ApiKeys(dict.fromkeys(keys, UNNAMED))


def over_tcp(world: World, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    address = f"http://127.0.0.1:{world.tcp_port}"
    return httpx.AsyncClient(base_url=address, timeout=PATIENCE, headers=headers)


def routes_of_administrators(world: World) -> list[tuple[str, str]]:
    routes = [route for route in world.app.routes if isinstance(route, Route)]
    admin = [(min(route.methods or ()), route.path) for route in routes if "/admin" in route.path]
    return [*admin, *GUARDED]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, tcp=True, admin_keys=keys_of(ADMIN)) as world:
        world.control.outcome = attempt()
        yield world


async def test_an_admin_key_opens_every_route_of_administrators_over_tcp(world: World) -> None:
    async with over_tcp(world, ADMIN) as client:
        for method, path in routes_of_administrators(world):
            answer = await client.request(method, path, json={})
            assert answer.status_code not in (401, 403), path
    assert {"reload", "rollback", "pin"} <= {verb for verb, *_ in world.control.asked}


async def test_who_came_with_a_key_is_told_by_the_address_and_never_by_the_key(
    world: World,
) -> None:
    async with over_tcp(world, ADMIN) as client:
        body = {"model_path": "/ckpt/step-2", "reason": "an evaluation"}
        assert (await client.post("/admin/reload_weights", json=body)).status_code == 200
    (by,) = world.control.by
    assert (by.verb, by.uid, by.pid, by.reason) == ("reload", None, None, "an evaluation")
    assert by.address.startswith("127.0.0.1:")
    assert ADMIN not in repr(by)


@pytest.mark.parametrize("key", [None, API, f"{ADMIN}x", ADMIN[:-1]])
async def test_without_an_admin_key_no_route_of_administrators_is_opened(
    world: World, key: str | None
) -> None:
    async with over_tcp(world, key) as client:
        for method, path in routes_of_administrators(world):
            answer = await client.request(method, path, json={"abort_all": True})
            assert (answer.status_code, answer.json()["code"]) == (401, "invalid_api_key"), path
            assert "admin key" in answer.json()["detail"]
            assert "Bearer" in answer.headers["www-authenticate"]
        assert (await client.get("/status")).status_code == 200
    assert world.control.asked == []


async def test_an_admin_key_is_an_api_key_too_and_an_api_key_is_no_admin_key(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, tcp=True, keys=keys_of(API), admin_keys=keys_of(ADMIN)) as world:
        world.control.outcome = attempt()
        for key, codes in ((ADMIN, (200, 200)), (API, (200, 401)), (None, (401, 401))):
            async with over_tcp(world, key) as client:
                asked = await client.post("/generate", json={"text": "a"})
                ordered = await client.post("/admin/rollback")
            assert (asked.status_code, ordered.status_code) == codes, key


async def test_where_no_admin_keys_are_configured_the_answer_says_what_to_set(
    tmp_path: Path,
) -> None:
    async with (
        serve(tmp_path, tcp=True, keys=keys_of(API)) as world,
        over_tcp(world, API) as client,
    ):
        answer = await client.post("/admin/rollback")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "[server] admin_keys_file" in answer.json()["detail"]


@pytest.mark.parametrize(
    "browser", [PAGE, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_web_page_that_has_the_key_changes_nothing(
    tmp_path: Path, browser: dict[str, Any]
) -> None:
    async with (
        serve(tmp_path, tcp=True, admin_keys=keys_of(ADMIN), origins=[PAGE["Origin"]]) as world,
        over_tcp(world, ADMIN) as client,
    ):
        for method, path in routes_of_administrators(world):
            answer = await client.request(method, path, json={}, headers=browser)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert world.control.asked == []


async def test_by_the_socket_the_kernel_still_says_who_comes(world: World) -> None:
    async with world.client() as client:
        answer = await client.post("/admin/rollback", headers={"Authorization": "Bearer no"})
    assert answer.status_code == 200
    (by,) = world.control.by
    assert (by.uid is not None, by.address) == (True, "")


async def test_false_admin_keys_are_counted_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with over_tcp(world, API) as client:
        await client.post("/admin/rollback")
    (told,) = [vars(each) for each in caplog.records if each.message == "api_keys.refused"]
    assert (told["requests"], told["from"]) == (1, ["127.0.0.1"])
    assert API not in str(told)


def test_people_read_where_the_key_came_from() -> None:
    by = By("rollback", None, None, 0.0, "bad answers", address="10.0.0.7:4711", route="/update")
    told = by_fields(by)
    assert (told["address"], told["uid"]) == ("10.0.0.7:4711", None)
    who = "rollback by 10.0.0.7:4711 (admin key) through /update"
    assert describe_order(told) == f"{who}, {told['at']}: bad answers"
    assert not {"address", "route"} & by_fields(By("pin", 0, 7, 1.0)).keys()


async def test_the_daemons_own_page_rolls_back_and_pins_with_an_admin_key_alone(
    world: World,
) -> None:
    """The key is in a header, which no other site can have a browser send; a cookie is none."""
    own = {"Origin": f"http://127.0.0.1:{world.tcp_port}"}
    key = {"Authorization": f"Bearer {ADMIN}"}
    orders = ("/admin/rollback", "/admin/pin", "/admin/unpin")
    async with over_tcp(world) as client:

        async def ask(path: str, **headers: str) -> int:
            return (await client.post(path, json={}, headers=headers)).status_code

        for path in orders:
            assert await ask(path, **own, Cookie=f"key={ADMIN}") == 401
            assert await ask(path, **own, Authorization=f"Bearer {API}") == 401
            assert await ask(path, **PAGE, **key) == 403
            assert await ask(path, **own, **key, **{"Sec-Fetch-Site": "same-site"}) == 403
        assert world.control.asked == []
        for path in orders:
            assert await ask(path, **own, **key, **{"Sec-Fetch-Site": "same-origin"}) == 200
        assert await ask("/admin/reload_weights", **own, **key) == 403
    assert [verb for verb, *_ in world.control.asked] == ["rollback", "pin", "unpin"]


async def test_keys_says_what_the_key_of_a_request_opens(tmp_path: Path) -> None:
    async with serve(tmp_path, tcp=True, keys=keys_of(API), admin_keys=keys_of(ADMIN)) as world:
        for key, opens in ((API, False), (ADMIN, True)):
            async with over_tcp(world, key) as client:
                told = (await client.get("/keys")).json()
            assert told == {"name": None, "may_change": opens, "admin_keys": True}
        async with over_tcp(world, f"{API}x") as client:
            assert (await client.get("/keys")).status_code == 401
        async with world.client() as local:
            assert (await local.get("/keys")).json()["may_change"]
            assert not (await local.get("/keys", headers=PAGE)).json()["may_change"]
    async with serve(tmp_path, tcp=True) as plain, over_tcp(plain) as client:
        told = (await client.get("/keys")).json()
    assert told == {"name": None, "may_change": False, "admin_keys": False}
