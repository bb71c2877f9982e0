"""GET /openapi.json: every route is in it, and every answer is described."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from hotreload.features import FEATURES
from hotreload.server.api_schema.openapi import describe
from hotreload.server.http.keys import OPEN_PATHS, ApiKeys
from hotreload.server.http.keys import WEBHOOK_PATH as WEBHOOK
from hotreload.server.http.request_log import (
    COUNTED_AS_OTHER,
    COUNTED_FROM_THE_START,
    COUNTED_ONCE_ASKED,
)
from hotreload.server_limits import UNNAMED, Limits
from tests.features.given import parts_of
from tests.server.fuzz import fuzz
from tests.server.test_trainer_orders import GUARDED as ORDERS
from tests.server.world import FIRST, World, attempt, serve

PAUSES = {"/pause_generation", "/continue_generation", "/pause", "/resume"}
LOOKS = {"/flush_cache", "/abort_request", "/get_weights_by_name", "/weights_checker"}
GUARDED = LOOKS | PAUSES | set(ORDERS)
"""Other servers' routes that ask for the rights of the admin routes."""
QUICK = Limits(generation_seconds=0.05, request_seconds=20)


def routes_of(world: World) -> set[tuple[str, str]]:
    routes = [route for route in world.app.routes if isinstance(route, Route)]
    assert len(routes) == len(world.app.routes)
    return {
        (method, route.path_format)
        for route in routes
        for method in (route.methods or {"ANY"}) - {"HEAD"}  # answered wherever GET is
    }


async def test_every_route_of_the_app_is_counted_by_its_path_and_no_other(world: World) -> None:
    counted = {*COUNTED_FROM_THE_START, *COUNTED_ONCE_ASKED, *COUNTED_AS_OTHER}
    of_features = [part.paths for part in world.features.routes]
    assert {path for _, path in routes_of(world)} == counted.union(*of_features)


async def test_the_document_holds_every_route_and_the_statuses_it_answers_with(
    world: World,
) -> None:
    async with world.client() as client:
        document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    told = {(method.upper(), path) for path in paths for method in paths[path]}
    assert told == routes_of(world)
    generate = paths["/generate"]["post"]["responses"]
    assert set(generate) >= {"200", "400", "408", "409", "413", "431", "503", "504"}
    assert "application/problem+json" in generate["400"]["content"]
    chat = paths["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["requestBody"]["content"]["application/json"]["schema"]["required"] == ["messages"]
    reload = paths["/admin/reload_weights"]["post"]["responses"]
    for status in ("409", "422", "503"):  # how an attempt ended, or why there was none
        assert set(reload[status]["content"]) == {"application/json", "application/problem+json"}
    assert "Retry-After" in reload["503"]["headers"]


async def test_the_document_says_what_opens_each_operation(world: World) -> None:
    async with world.client() as client:
        document = (await client.get("/openapi.json")).json()
    schemes = document["components"]["securitySchemes"]
    assert {name: (each["type"], each.get("scheme")) for name, each in schemes.items()} == {
        "ApiKey": ("http", "bearer"),
        "AdminKey": ("http", "bearer"),
        "WebhookSecret": ("apiKey", None),
    }
    assert "SO_PEERCRED" in schemes["ApiKey"]["description"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            admin = path.startswith("/admin/") or path in GUARDED
            key = "AdminKey" if admin else "ApiKey"
            is_page = method.lower() == "get" and path in ("/", "/page/{name}")
            usual: list[object] = [] if path in OPEN_PATHS or is_page else [{key: []}, {}]
            assert operation["security"] == ([{"WebhookSecret": []}] if path == WEBHOOK else usual)
            assert ("SO_PEERCRED" in operation.get("description", "")) == admin


async def test_what_it_says_is_what_happens_to_who_shows_nothing_over_tcp(tmp_path: Path) -> None:
    keys = ApiKeys({"a-key-of-24-characters-1": UNNAMED})
    async with serve(tmp_path, tcp=True, keys=keys, webhook="knock-knock") as world:
        address = f"http://127.0.0.1:{world.tcp_port}"
        async with world.client() as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
        for method, path in routes_of(world):
            async with httpx.AsyncClient(base_url=address) as client:
                status = (await client.request(method, path)).status_code
            operation = paths[path][method.lower()]
            wants_something = bool(operation["security"] or operation.get("description"))
            assert (status == 401) == wants_something, path


async def test_schemathesis_finds_no_500_and_no_answer_that_is_not_described(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, limits=QUICK) as world:
        world.control.outcome = attempt()
        world.go_live(replace(FIRST, number=2**53))  # as new as any that is asked for
        seen = await asyncio.to_thread(fuzz, world.path, examples=8)
        assert world.gate.inside == world.gate.held == 0
    assert seen["POST /webhook/huggingface"] == {404}
    assert seen["POST /generate"] >= {200, 400}
    assert seen["POST /v1/chat/completions"] >= {200, 400}
    assert seen["POST /admin/perturb_weights"] >= {200, 400}


async def test_schemathesis_over_tcp_finds_the_same_and_admin_routes_closed(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=QUICK, tcp=True, webhook="knock-knock") as world:
        world.go_live(replace(FIRST, number=2**53))
        address = f"http://127.0.0.1:{world.tcp_port}"
        only = ("/generate", "/admin/", *GUARDED, WEBHOOK)  # all else is asked above
        seen = await asyncio.to_thread(fuzz, address, examples=2, only=only)
        assert world.gate.inside == world.gate.held == 0
        assert world.control.asked == []
        assert world.woken == []
    assert seen["POST /generate"] >= {200, 400}
    assert {code for route in seen if " /admin/" in route for code in seen[route]} == {403}


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [({}, {401, 403}), ({"X-Webhook-Secret": "knock-knock"}, {202, 401})],  # it leaves it out, too
)
async def test_schemathesis_finds_the_webhook_as_it_is_described(
    tmp_path: Path, headers: dict[str, str], statuses: set[int]
) -> None:
    async with serve(tmp_path, webhook="knock-knock") as world:
        only = "/webhook"
        seen = await asyncio.to_thread(fuzz, world.path, examples=20, only=only, headers=headers)
        assert bool(world.woken) == (202 in statuses)
    assert seen == {"POST /webhook/huggingface": statuses}


def test_without_features_no_schema_names_what_they_add(world: World) -> None:
    known = json.dumps(describe(world.app.routes, [])["components"]["schemas"])
    of_features = [routes for each in FEATURES if (routes := parts_of(each).routes)]
    assert len(of_features) > 1
    for each in of_features:
        fields = {name for added in each.adds.values() for name in added}
        assert fields, "a feature adds a field"
        assert [name for name in fields if f'"{name}"' in known] == []
    named = describe(world.app.routes, of_features)["components"]["schemas"].keys()
    assert {"Bake", "Behaviour", "Pause"} <= named
