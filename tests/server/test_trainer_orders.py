"""The routes by which trainers change what is live: SGLang's and vLLM's, as orders of ours."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.errors import BadRequest, Busy, NotServing
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.problems import NOT_SERVED
from hotreload.server_limits import UNNAMED
from hotreload.types import Lease, Outcome, Reason
from tests.fake_answers import FOR_EVER
from tests.server.world import FIRST, LEAVES, World, attempt, serve

KEY = "an-admin-key-of-24-chars"
FROM_DISK, BY_NAME = "/update_weights_from_disk", "/update_weights"
GUARDED = [
    FROM_DISK,
    BY_NAME,
    "/update_weight_version",
    "/reset_prefix_cache",
    "/weight_checker",
]
NAN = Reason("nonfinite", "model.safetensors: tensor 'lm_head' holds NaN", ("lm_head: 3 NaN",))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    keys = ApiKeys({KEY: UNNAMED})
    async with serve(tmp_path, tcp=True, admin_keys=keys) as world:
        world.control.outcome = replace(attempt(), version="7")
        yield world


async def ask(world: World, method: str, path: str, body: Any = None) -> httpx.Response:
    async with world.client() as client:
        return await client.request(method, path, json=body)


async def post(world: World, path: str, body: Any) -> httpx.Response:
    return await ask(world, "POST", path, body)


# --- from a folder -------------------------------------------------------------------------------


async def test_an_update_is_answered_when_it_is_live_as_sglang_answers(world: World) -> None:
    body = {"model_path": "/ckpt/weight_v000007", "weight_version": "7"}
    answer = await post(world, FROM_DISK, body)
    said = answer.json()
    assert answer.status_code == 200
    assert (said["success"], said["num_paused_requests"]) == (True, 0)
    assert said["message"] == "Succeeded to update model weights. Weight version updated to 7."
    assert (said["generation"], said["weight_version"], said["outcome"]) == (2, "7", "live")
    assert world.control.asked == [("reload", "/ckpt/weight_v000007", False)]
    assert world.control.versions == ["7"]
    unnamed = await post(world, FROM_DISK, {"model_path": "/ckpt/step-2"})
    assert unnamed.json()["message"] == "Succeeded to update model weights."
    assert world.control.versions == ["7", ""]


async def test_what_asks_for_nothing_here_is_taken(world: World) -> None:
    taken = {
        "load_format": None,
        "abort_all_requests": False,
        "weight_version": None,
        "is_async": True,
        "torch_empty_cache": True,
        "keep_pause": True,
        "recapture_cuda_graph": True,
        "token_step": 7,
        "flush_cache": False,
        "manifest": None,
        "rid": None,
        "http_worker_ipc": None,
    }
    answer = await post(world, FROM_DISK, {"model_path": "/ckpt/step-2", **taken})
    assert answer.status_code == 200, answer.text
    assert (await post(world, FROM_DISK, {"model_path": "/a", "load_format": "auto"})).is_success


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "model_path"),
        ({"model_path": " "}, "model_path"),
        ({"model_path": "/a", "load_format": "dummy"}, "load_format"),
        ({"model_path": "/a", "manifest": {"a": 1}}, "manifest"),
        ({"model_path": "/a", "weight_version": 7}, "weight_version"),
        ({"model_path": "/a", "weight_version": "\u00fc"}, "X-Hotreload-Weight-Version"),
        ({"model_path": "/a", "files": ["/b"]}, "files"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name_in_the_same_shape(
    world: World, body: Any, named: str
) -> None:
    answer = await post(world, FROM_DISK, body)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert named in answer.json()["message"]
    assert answer.json()["num_paused_requests"] == 0
    assert world.control.asked == []


@pytest.mark.parametrize("path", [FROM_DISK, BY_NAME])
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.REJECTED, NAN),
        (Outcome.POSTPONED, Reason("source", "the disk does not answer")),
        (Outcome.SUPERSEDED, Reason("superseded", "a newer one is wanted")),
    ],
)
async def test_what_does_not_go_live_is_400_and_says_why(
    world: World, path: str, outcome: Outcome, reason: Reason
) -> None:
    world.control.outcome = attempt(outcome, reason)
    folder = "model_path" if path == FROM_DISK else "weight_dir"
    answer = await post(world, path, {folder: "/a"})
    said = answer.json()
    assert (answer.status_code, said["success"], said["outcome"]) == (400, False, outcome.value)
    assert (said["code"], said["findings"]) == (reason.code, list(reason.findings))
    assert said["message"] == f"Failed to update weights: {reason.message}"
    assert said["error"]["message"] == said["message"]


@pytest.mark.parametrize(
    "refusal",
    [
        BadRequest("/etc: lies outside of the allowed folders: /ckpt"),
        Busy("step-1 was asked for and is not done; ask again then"),
        NotServing("the engine is starting", code="booting"),
    ],
)
async def test_an_order_that_is_not_taken_is_400_too(world: World, refusal: Any) -> None:
    world.control.refusal = refusal
    answer = await post(world, FROM_DISK, {"model_path": "/a"})
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert str(refusal) in answer.json()["message"]
    assert answer.json()["code"] == refusal.code


async def test_who_orders_is_known_by_the_route_and_the_address(world: World) -> None:
    address = f"http://127.0.0.1:{world.tcp_port}"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        await client.post(FROM_DISK, json={"model_path": "/a"})
        await client.post(BY_NAME, json={"weight_dir": "/a"})
        await client.post("/update_weight_version", json={"new_version": "8"})
    routes = [(by.verb, by.route) for by in world.control.by]
    assert routes == [
        ("reload", FROM_DISK),
        ("reload", BY_NAME),
        ("version", "/update_weight_version"),
    ]
    assert all(by.address.startswith("127.0.0.1:") and by.uid is None for by in world.control.by)
    await post(world, FROM_DISK, {"model_path": "/a"})
    assert (world.control.by[-1].uid is not None, world.control.by[-1].address) == (True, "")


async def test_a_trainer_that_leaves_does_not_end_its_order(world: World) -> None:
    world.control.outcome = None
    async with world.client() as client:
        asking = asyncio.create_task(client.post(FROM_DISK, json={"model_path": "/a"}))
        await world.until(lambda: world.control.promise is not None)
        asking.cancel()
        await asyncio.wait({asking})
    promise = world.control.promise
    assert promise is not None
    assert not promise.cancelled()
    promise.set_result(attempt())


# --- what is ended by it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (FROM_DISK, {"model_path": "/a"}),
        (BY_NAME, {"weight_dir": "/a"}),
        ("/update_weight_version", {"new_version": "8"}),
    ],
)
async def test_nobody_is_aborted_unless_the_caller_says_so(
    world: World, path: str, body: Any
) -> None:
    running = await start_stream(world)
    assert (await post(world, path, body)).status_code == 200
    assert not running.done()
    if path != BY_NAME:
        assert (await post(world, path, {**body, "abort_all_requests": True})).status_code == 200
        assert '"asked"' in await running
    else:
        running.cancel()


async def test_what_is_refused_at_once_aborts_nobody(world: World) -> None:
    running = await start_stream(world)
    world.control.refusal = BadRequest("lies outside")
    await post(world, FROM_DISK, {"model_path": "/a", "abort_all_requests": True})
    assert not running.done()
    running.cancel()


async def start_stream(world: World) -> asyncio.Task[str]:
    async def stream() -> str:
        answer = await ask(world, "POST", "/generate", {"text": FOR_EVER, "stream": True})
        return answer.text

    task = asyncio.create_task(stream())
    await world.until(lambda: world.engine.running == 1)
    return task


# --- the version ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/get_weight_version", "/weight_version", "/weight_info"])
async def test_the_version_is_told_exactly_with_the_generation(world: World, path: str) -> None:
    world.go_live(replace(FIRST, version="run 3/step=7"))
    told = (await ask(world, "GET", path)).json()
    assert (told["weight_version"], told["generation"]) == ("run 3/step=7", 1)
    assert told["fingerprint"] == "fp-1"
    info = (await ask(world, "GET", "/model_info")).json()
    answer = (await post(world, "/generate", {"text": "a"})).json()
    status = (await ask(world, "GET", "/status")).json()
    for place in (info, answer["meta_info"], status):
        assert (place["weight_version"], place["generation"]) == ("run 3/step=7", 1)


async def test_what_is_live_is_named_as_both_worlds_ask(world: World) -> None:
    answer = await post(world, "/update_weight_version", {"new_version": "8"})
    said = answer.json()
    assert (answer.status_code, said["success"], said["new_version"]) == (200, True, "8")
    assert said["message"] == "Weight version updated to 8"
    assert (said["weight_version"], said["generation"]) == ("8", 1)
    assert world.control.asked == [("version", "8", False)]


@pytest.mark.parametrize(
    "body",
    [{}, {"new_version": ""}, {"new_version": 8}, {"new_version": "\u00fc"}, {"version": "8"}],
)
async def test_a_version_must_be_given_rightly(world: World, body: Any) -> None:
    answer = await post(world, "/update_weight_version", body)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert "version" in answer.json()["message"]
    assert world.control.asked == []


async def test_a_reload_by_our_own_route_may_bring_a_version_too(world: World) -> None:
    body = {"model_path": "/a", "weight_version": "7"}
    assert (await post(world, "/admin/reload_weights", body)).json()["weight_version"] == "7"
    assert world.control.versions == ["7"]


# --- vLLM's names --------------------------------------------------------------------------------


async def test_vllms_update_is_the_same_order(world: World) -> None:
    answer = await post(world, BY_NAME, {"weight_dir": "/ckpt/step_7"})
    said = answer.json()
    assert (answer.status_code, said["status"], said["success"]) == (200, "ok", True)
    assert answer.headers["content-length"]
    assert world.control.asked == [("reload", "/ckpt/step_7", False)]


@pytest.mark.parametrize(
    ("body", "named"),
    [({"weight_dir": None}, "weight_dir"), ({"update_info": {"names": []}}, "update_info")],
)
async def test_vllms_other_updates_are_refused_by_name(world: World, body: Any, named: str) -> None:
    answer = await post(world, BY_NAME, body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


async def test_the_world_size_counts_the_devices_of_all_engines(world: World) -> None:
    assert (await ask(world, "GET", "/get_world_size", {})).json() == {"world_size": 1}
    other = world.another_engine("the other")
    world.entrance.gates[1].open(Lease(FIRST, other))
    assert (await ask(world, "GET", "/get_world_size")).json() == {"world_size": 2}
    one = await ask(world, "GET", "/get_world_size?include_dp=false")
    assert one.json() == {"world_size": 1}


@pytest.mark.parametrize("body", [None, {"reset_running_requests": True}])
async def test_vllms_reset_of_prefixes_forgets_them_in_all_engines(world: World, body: Any) -> None:
    world.engine.prefixes = 7
    answer = await post(world, "/reset_prefix_cache?reset_running_requests=true", body)
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert world.engine.prefixes == 0


async def test_vllms_checker_tells_checksums_and_compares_with_those_it_is_given(
    world: World,
) -> None:
    path = "/weight_checker"
    now = (await post(world, path, {"action": "checksum"})).json()["checksums"]
    assert now == {name: f"{LEAVES[name]:016x}" for name in LEAVES}
    same = await post(world, path, {"action": "compare", "baseline": now})
    assert same.json() == {"match": True, "mismatches": []}
    other = await post(
        world, path, {"action": "compare", "baseline": {**now, "lm_head": "0", "x": "1"}}
    )
    assert other.json() == {"match": False, "mismatches": ["lm_head", "x"]}
    for wrong in ({"action": "reset"}, {"action": "compare"}, {"action": "tidy"}):
        answer = await post(world, path, wrong)
        assert answer.status_code == 400
        assert answer.json()["detail"]


# --- who may, and what is not served -------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(NOT_SERVED))
async def test_what_is_not_served_is_refused_by_name_with_what_to_use(
    world: World, path: str
) -> None:
    answer = await post(world, path, {"names": ["w"], "group_name": "g"})
    said = answer.json()
    assert (answer.status_code, said["success"]) == (400, False)
    assert said["message"].startswith(f"{path} is not served: ")
    assert said["error"]["message"] == said["message"]


@pytest.mark.parametrize("path", GUARDED)
async def test_over_tcp_an_admin_key_alone_opens_them(world: World, path: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.tcp_port}") as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 401
        assert (await client.get("/weight_info")).status_code == 200
    async with world.client() as client:
        page = {"Origin": "http://localhost:8000", "Content-Type": "application/json"}
        assert (await client.post(path, json={}, headers=page)).status_code == 403
    assert world.control.asked == []
