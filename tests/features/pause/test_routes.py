"""A pause by SGLang's names and vLLM's, with the bodies that trainers send."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from hotreload.attempts import By
from hotreload.core.ledger import Ledger
from hotreload.errors import NotServing
from hotreload.features.pause.pause import Pause
from hotreload.features.pause.routes import PAUSE_PATHS, pause_routes
from hotreload.hosts.life.follower import FollowerRefusal
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.observe.metrics import Metrics
from hotreload.picture.picture import Picture
from hotreload.types import Lease
from tests.server.world import FIRST, SECOND, World, serve

ENDED_AS_ASKED = "asked"
BY = By("continue", 0, 1, 0.0)
GOES_ON = {"message": "Generation continued successfully.", "status": "ok", "success": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path) as world:
        yield world
        world.admission(Pause).end(BY)


async def asked(world: World, method: str, path: str, body: Any = None) -> httpx.Response:
    async with world.client() as client:
        return await client.request(method, path, json=body)


async def post(world: World, path: str, body: Any = None) -> Any:
    answer = await asked(world, "POST", path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def waits(world: World) -> asyncio.Task[httpx.Response]:
    """One who asks while it is paused."""
    before = world.admission(Pause).held
    asking = asyncio.create_task(asked(world, "POST", "/generate", {"text": "hi"}))
    await world.until(lambda: world.admission(Pause).held == before + 1)
    return asking


async def runs(world: World) -> asyncio.Task[httpx.Response]:
    """One whose answer is being made, and is not done before the test says so."""
    world.engine.may_answer.clear()
    asking = asyncio.create_task(asked(world, "POST", "/generate", {"text": "hi"}))
    await world.until(lambda: world.engine.running == 1)
    return asking


def reason(answer: httpx.Response) -> Any:
    assert answer.status_code == 200
    return answer.json()["meta_info"]["finish_reason"]


# slime sends {} (624b824a898a, slime/backends/sglang_utils/sglang_engine.py:423), AReaL too
# (4aef98d8d818, areal/engine/sglang_remote.py:273), miles a mode (31f1ca961a94,
# miles/backends/sglang_utils/sglang_engine.py:623), TorchRL too (ae9719f17b15,
# torchrl/weight_update/llm/sglang_nccl.py:95); sglang-jax 0.0.2 reads no body at all.
@pytest.mark.parametrize("body", [None, {}, {"mode": "abort"}, {"mode": None, "rid": None}])
async def test_to_abort_ends_those_that_run_and_answers_when_none_does(
    world: World, body: Any
) -> None:
    running = await runs(world)
    told = await post(world, "/pause_generation", body)
    assert told == {
        "message": "Generation paused successfully.",
        "status": "ok",
        "success": True,
        "mode": "abort",
        "mode_applied": "abort",
    }
    assert world.gate.inside == 0
    assert reason(await running)["code"] == ENDED_AS_ASKED
    asking = await waits(world)
    world.engine.may_answer.set()
    assert await post(world, "/continue_generation", {"torch_empty_cache": True}) == {
        **GOES_ON,
        "was_paused": True,
    }
    assert reason(await asking) == {"type": "stop"}


async def test_who_is_between_gate_and_engine_is_aborted_too(world: World) -> None:
    async with world.entrance.admit():
        pausing = asyncio.create_task(post(world, "/pause_generation", {}))
        await world.until(lambda: world.admission(Pause).stands)
        await asyncio.sleep(0.05)
        assert not pausing.done()
    assert (await pausing)["success"]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_what_would_mix_generations_ends_by_itself_and_the_answer_says_so(
    world: World, mode: str
) -> None:
    running = await runs(world)
    told = await post(world, "/pause_generation", {"mode": mode})
    assert (told["mode"], told["mode_applied"]) == (mode, "finish")
    assert not running.done()
    world.go_live(SECOND)
    asking = await waits(world)
    world.engine.may_answer.set()
    assert reason(await running) == {"type": "stop"}
    assert (await running).json()["meta_info"]["generation"] == 1
    await post(world, "/continue_generation", {})
    assert (await asking).json()["meta_info"]["generation"] == 2


async def test_to_continue_where_nothing_is_paused_is_no_fault(world: World) -> None:
    assert await post(world, "/continue_generation") == {**GOES_ON, "was_paused": False}


# prime-rl (559b44772e47, src/prime_rl/utils/client.py:208-271) and SkyRL (a9564572eb8e,
# skyrl/backends/skyrl_train/inference_servers/remote_inference_client.py:985).
async def test_by_vllms_names_it_is_the_same_pause(world: World) -> None:
    running = await runs(world)
    told = await post(world, "/pause?mode=keep&clear_cache=false")
    assert told == {"status": "paused", "success": True, "mode": "keep", "mode_applied": "finish"}
    assert (await asked(world, "GET", "/is_paused")).json() == {"is_paused": True}
    asking = await waits(world)
    world.engine.may_answer.set()
    assert reason(await running) == {"type": "stop"}
    told = await post(world, "/resume")
    assert told == {"status": "resumed", "success": True, "was_paused": True}
    assert reason(await asking) == {"type": "stop"}
    assert (await asked(world, "GET", "/is_paused")).json() == {"is_paused": False}


async def test_vllms_wait_answers_when_those_that_run_have_ended(world: World) -> None:
    running = await runs(world)
    pausing = asyncio.create_task(post(world, "/pause?mode=wait"))
    await world.until(lambda: world.admission(Pause).stands)
    await asyncio.sleep(0.05)
    assert not pausing.done()
    world.engine.may_answer.set()
    assert reason(await running) == {"type": "stop"}
    assert (await pausing)["mode_applied"] == "finish"


async def test_vllms_usual_mode_is_abort(world: World) -> None:
    running = await runs(world)
    assert (await post(world, "/pause"))["mode_applied"] == "abort"
    assert reason(await running)["code"] == ENDED_AS_ASKED


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/pause_generation", {"mode": "freeze"}, "mode"),
        ("/pause_generation", {"until": 3}, "until"),
        ("/pause?mode=freeze", None, "mode"),
        ("/continue_generation", {"torch_empty_cache": 1}, "torch_empty_cache"),
    ],
)
async def test_what_it_cannot_do_is_named(world: World, path: str, body: Any, named: str) -> None:
    answer = await asked(world, "POST", path, body)
    assert (answer.status_code, named in answer.json()["detail"]) == (400, True)
    assert not world.admission(Pause).stands


async def test_a_caller_that_leaves_leaves_the_pause(world: World) -> None:
    async with world.entrance.admit():
        pausing = asyncio.create_task(post(world, "/pause_generation", {}))
        await world.until(lambda: world.admission(Pause).stands)
        pausing.cancel()
        await asyncio.wait({pausing})
    assert world.admission(Pause).stands


async def test_it_holds_all_engines_and_aborts_in_all(world: World) -> None:
    other = world.another_engine("served by the other")
    world.entrance.gates[1].open(Lease(FIRST, other))
    for engine in (world.engine, other):
        engine.may_answer.clear()
    running = [
        asyncio.create_task(asked(world, "POST", "/generate", {"text": "hi"})) for _ in range(2)
    ]
    await world.until(lambda: world.engine.running == other.running == 1)
    await post(world, "/pause_generation", {})
    assert [reason(await each)["code"] for each in running] == [ENDED_AS_ASKED] * 2
    asking = [await waits(world), await waits(world)]
    for engine in (world.engine, other):
        engine.may_answer.set()
    await post(world, "/continue_generation", {})
    assert [reason(await each) for each in asking] == [{"type": "stop"}] * 2


async def test_health_and_looks_at_the_weights_are_answered_meanwhile(world: World) -> None:
    """Routers count failures: a pause of seconds must open no breaker."""
    await post(world, "/pause_generation", {})
    for method, path in (
        ("GET", "/health"),
        ("GET", "/readyz"),
        ("GET", "/health_generate"),
        ("GET", "/flush_cache"),
        ("POST", "/flush_cache"),
        ("GET", "/weights_checker"),
        ("GET", "/model_info"),
        ("GET", "/get_load"),
        ("GET", "/admin/weights_checksum"),
    ):
        assert (await asked(world, method, path)).status_code == 200, path
    body = {"name": "lm_head"}
    assert (await asked(world, "POST", "/get_weights_by_name", body)).status_code == 200


async def test_who_waits_and_leaves_is_forgotten_and_too_many_are_refused(world: World) -> None:
    world.admission(Pause).max_held = 1
    await post(world, "/pause_generation", {})
    asking = await waits(world)
    refused = await asked(world, "POST", "/generate", {"text": "hi"})
    assert (refused.status_code, refused.json()["code"]) == (503, "too_many_held")
    assert refused.headers["Retry-After"] == "1"
    asking.cancel()
    await world.until(lambda: world.admission(Pause).held == 0)


async def test_a_stop_refuses_those_held(world: World) -> None:
    await post(world, "/pause_generation", {})
    asking = await waits(world)
    world.entrance.seal("hotreload is stopping", code="stopping")
    answer = await asking
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")


async def test_before_anything_answers_nothing_is_paused(tmp_path: Path) -> None:
    async with serve(tmp_path, booted=False) as world:
        for path in ("/pause_generation", "/pause"):
            answer = await asked(world, "POST", path, None)
            assert (answer.status_code, answer.json()["code"]) == (503, "booting")
        assert not world.admission(Pause).stands


async def test_the_operator_may_forbid_it(world: World) -> None:
    world.admission(Pause).limit = 0
    answer = await asked(world, "POST", "/pause_generation", {})
    assert (answer.status_code, answer.json()["code"]) == (400, "pause_forbidden")
    assert "[pause] limit" in answer.json()["detail"]


@pytest.mark.parametrize("path", sorted(PAUSE_PATHS))
async def test_a_rank_that_follows_takes_none_of_it(path: str) -> None:
    async def admit(request: Request) -> None:
        """Let everybody through."""

    app = FastAPI()
    pause = Pause(print, look_again=print, limit=600.0)
    follower: Any = FollowerRefusal(Ranks(1, 2, "10.0.0.1:7000"))
    app.include_router(pause_routes(pause).make(follower, admit))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://follower") as client:
        with pytest.raises(NotServing) as refused:
            await client.request("GET" if path == "/is_paused" else "POST", path)
    assert refused.value.code == "not_rank_0"
    assert not pause.stands


def test_requests_are_counted_by_the_paths_of_its_routes() -> None:
    def counted(of_features: frozenset[str]) -> set[str]:
        metrics = Metrics(Picture(Ledger()), later_routes=of_features)
        for path in PAUSE_PATHS:
            metrics.request_finished(path, 200, 0.1)
        pages = metrics.render().decode()
        return set(re.findall(r'requests_total{code="200",route="([^"]+)"} [1-9]', pages))

    paths = pause_routes(Pause(print, look_again=print)).paths
    assert counted(paths) == PAUSE_PATHS
    assert counted(frozenset()) == {"other"}
