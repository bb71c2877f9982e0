"""SGLang's routes that change nothing of the weights: their bodies as SGLang 0.5.23 has them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.server.http.problems import Refused
from hotreload.server.sglang.answers import ServedModel
from hotreload.server.sglang.routes import HealthProbe
from hotreload.server_limits import Limits
from hotreload.types import Lease
from tests.fake_answers import FOR_EVER
from tests.fakes import HANG
from tests.server.world import FIRST, LEAVES, SECOND, World, serve

GUARDED = [
    ("GET", "/flush_cache"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/get_weights_by_name"),
    ("POST", "/get_weights_by_name"),
    ("GET", "/weights_checker"),
    ("POST", "/weights_checker"),
]
STAMP = {"generation", "revision", "label", "fingerprint", "live_since"}
ENDLESS = {"text": FOR_EVER, "stream": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serve(tmp_path, model=ServedModel("tiny", "/models/tiny")) as world:
        yield world


async def ask(world: World, method: str, path: str, body: Any = None) -> httpx.Response:
    async with world.client() as client:
        return await client.request(method, path, json=body)


async def get(world: World, path: str) -> Any:
    answer = await ask(world, "GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- who answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_the_model_is_told_with_the_version_of_its_weights(world: World, path: str) -> None:
    told = await get(world, path)
    assert {name: told.pop(name) for name in STAMP}["generation"] == 1
    assert told == {
        "model_path": "/models/tiny",
        "served_model_name": "tiny",
        "tokenizer_path": "/models/tiny",
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "1",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "fake",
        "architectures": ["FakeForCausalLM"],
    }


async def test_the_version_moves_with_the_weights_and_the_path_does_not(world: World) -> None:
    world.go_live(SECOND)
    told = await get(world, "/model_info")
    assert (told["weight_version"], told["model_path"]) == ("2", "/models/tiny")


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_set_up_is_told_as_routers_and_trainers_read_it(world: World, path: str) -> None:
    told = await get(world, path)
    expected = {
        "model_path": "/models/tiny",
        "served_model_name": "tiny",
        "tokenizer_path": "/models/tiny",
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "num_gpus": 1,
        "disaggregation_mode": "null",
        "encoder_only": False,
        "version": "fake",
        "context_length": 256,
        "max_total_tokens": 9,
        "max_total_num_tokens": 9,
        "max_running_requests": 6,
        "weight_version": "1",
    }
    assert {name: told[name] for name in expected} == expected
    (state,) = told["internal_states"]
    assert state["weight_version"] == "1"


async def test_every_answer_names_the_version(world: World) -> None:
    answer = await ask(world, "POST", "/generate", {"text": "hi"})
    about = answer.json()["meta_info"]
    assert (about["weight_version"], about["generation"]) == ("1", 1)
    chat = await ask(world, "POST", "/v1/completions", {"prompt": "hi"})
    assert chat.json()["hotreload"]["weight_version"] == "1"


async def test_before_anything_answers_they_say_that_it_boots(tmp_path: Path) -> None:
    async with serve(tmp_path, booted=False) as world:
        for path in ("/model_info", "/server_info", "/get_load", "/health_generate"):
            answer = await ask(world, "GET", path)
            assert (answer.status_code, answer.json()["code"]) == (503, "booting"), path
        for path, body in (
            ("/v1/loads", None),
            ("/v1/tokenize", {"prompt": "hi"}),
            ("/v1/detokenize", {"tokens": [1]}),
        ):
            answer = await ask(world, "GET" if body is None else "POST", path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "booting"), path
        assert (await ask(world, "GET", "/flush_cache")).json()["code"] == "booting"


# --- how busy it is ------------------------------------------------------------------------------

CORE = {
    "timestamp",
    "dp_rank",
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_used_tokens",
    "num_total_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "utilization",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
    "decode_moments",
}


async def test_the_load_is_a_bare_array_with_an_entry_for_each_engine(world: World) -> None:
    (told,) = await get(world, "/get_load")
    assert told.pop("ts_tic") > 0
    assert told == {
        "dp_rank": 0,
        "num_reqs": 0,
        "num_running_reqs": 0,
        "num_waiting_reqs": 0,
        "num_tokens": 0,
        "num_pending_tokens": 0,
    }


async def test_who_is_inside_counts_at_once_and_nobody_who_has_left(world: World) -> None:
    _, writer = await world.ask_raw(ENDLESS)
    await world.until(lambda: world.engine.running == 1)
    (busy,) = await get(world, "/get_load")
    assert (busy["num_running_reqs"], busy["num_reqs"], busy["num_tokens"]) == (1, 1, 1)
    writer.close()
    await world.until(lambda: world.gate.inside == 0)
    (idle,) = await get(world, "/get_load")
    assert idle["num_reqs"] == 0


async def test_loads_have_the_sections_that_are_asked_for(world: World) -> None:
    told = await get(world, "/v1/loads")
    assert told.keys() == {"timestamp", "version", "accelerator", "num_accelerators", "loads"}
    (load,) = told["loads"]
    assert load.keys() == CORE | {"memory", "queues"}
    assert (load["max_total_num_tokens"], load["max_running_requests"]) == (9, 6)
    (core,) = (await get(world, "/v1/loads?include=core"))["loads"]
    assert core.keys() == CORE
    (queues,) = (await get(world, "/v1/loads?include=core,queues,spec"))["loads"]
    assert queues.keys() == CORE | {"queues"}
    assert (await get(world, "/v1/loads?dp_rank=0"))["loads"][0]["dp_rank"] == 0
    assert (await get(world, "/v1/loads?dp_rank=7"))["loads"] == []


@pytest.mark.parametrize("query", ["include=all,sorts", "dp_rank=first", "format=prometheus"])
async def test_what_loads_cannot_tell_is_named(world: World, query: str) -> None:
    answer = await ask(world, "GET", f"/v1/loads?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


# --- does it make a token? -----------------------------------------------------------------------


async def test_health_answers_as_soon_as_one_token_was_made(world: World) -> None:
    answer = await ask(world, "GET", "/health_generate")
    assert (answer.status_code, answer.content) == (200, b"")
    (request,) = world.engine.requests
    assert request["sampling_params"]["max_new_tokens"] == 1


async def test_all_who_ask_for_health_share_one_token_and_none_who_leaves_ends_it(
    world: World,
) -> None:
    world.engine.may_answer.clear()
    gone = asyncio.create_task(ask(world, "GET", "/health_generate"))
    await world.until(lambda: world.engine.running == 1)
    gone.cancel()
    await asyncio.wait({gone})
    others = [asyncio.create_task(ask(world, "GET", "/health_generate")) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert world.engine.running == len(world.engine.requests) == 1
    world.engine.may_answer.set()
    assert {(await other).status_code for other in others} == {200}
    assert world.engine.running == 0


async def test_health_is_bad_when_nobody_was_given_a_token_in_time(world: World) -> None:
    world.engine.steps.faults["generate"] = HANG
    last = 0.0
    probe = HealthProbe(world.entrance, lambda: last, within=0.01)
    with pytest.raises(Refused) as refused:
        await probe.wait_for_token()
    assert (refused.value.status, refused.value.code) == (503, "no_token")
    last = float("inf")  # a client was answered meanwhile: the engine is only busy
    await probe.wait_for_token()
    world.engine.steps.released["generate"].set()


# --- caches, and requests that nobody wants any more ----------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_flush_forgets_what_nobody_uses_and_disturbs_nobody(
    world: World, method: str
) -> None:
    await ask(world, "POST", "/generate", {"text": "hi"})
    world.engine.may_answer.clear()
    running = asyncio.create_task(ask(world, "POST", "/generate", {"text": "hi"}))
    await world.until(lambda: world.engine.running == 1)
    answer = await ask(world, method, "/flush_cache?timeout=0")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("Cache flushed.\nFlushed items: 7\n")
    world.engine.may_answer.set()
    assert (await running).json()["meta_info"]["finish_reason"] == {"type": "stop"}


ENDED_AS_ASKED = {
    "type": "abort",
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
    "code": "asked",
}


@pytest.mark.parametrize(
    ("wish", "ended"),
    [
        ({"rid": "mine"}, {"mine"}),
        ({"rid": "mine", "abort_all": False, "abort_message": None}, {"mine"}),
        ({"rid": "min"}, set()),
        ({"rid": ""}, set()),
        ({}, set()),
        ({"abort_all": True}, {"mine", "theirs"}),
        ({"rid": "another", "abort_all": True}, {"mine", "theirs"}),
    ],
)
async def test_an_abort_ends_the_requests_that_are_meant_with_200(
    world: World, wish: Any, ended: set[str]
) -> None:
    world.engine.may_answer.clear()
    running = {
        rid: asyncio.create_task(ask(world, "POST", "/generate", {"text": "hi", "rid": rid}))
        for rid in ("mine", "theirs")
    }
    await world.until(lambda: world.engine.running == 2)
    answer = await ask(world, "POST", "/abort_request", wish)
    assert (answer.status_code, answer.content) == (200, b"")
    await world.until(lambda: world.engine.running == 2 - len(ended))
    world.engine.may_answer.set()
    for rid, task in running.items():
        told = await task
        assert told.status_code == 200
        reason = told.json()["meta_info"]["finish_reason"]
        assert reason == (ENDED_AS_ASKED if rid in ended else {"type": "stop"})
    counted = [code for route, code in world.metrics.finished if route == "/generate"]
    assert counted == [200, 200]  # it is what their clients wished


async def test_an_abort_reaches_every_engine(world: World) -> None:
    other = world.another_engine("served by the other")
    world.entrance.gates[1].open(Lease(FIRST, other))
    for engine in (world.engine, other):
        engine.may_answer.clear()
    running = [
        asyncio.create_task(ask(world, "POST", "/generate", {"text": "hi"})) for _ in range(2)
    ]
    await world.until(lambda: world.engine.running == other.running == 1)
    await ask(world, "POST", "/abort_request", {"abort_all": True})
    for task in running:
        assert (await task).json()["meta_info"]["finish_reason"] == ENDED_AS_ASKED


async def test_what_an_abort_cannot_do_is_named(world: World) -> None:
    for wish, name in (({"prefix": True}, "prefix"), ({"abort_message": "go"}, "abort_message")):
        answer = await ask(world, "POST", "/abort_request", wish)
        assert answer.status_code == 400
        assert name in answer.json()["detail"]


# --- the weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_first_numbers_of_a_leaf_are_a_bare_list(world: World, method: str) -> None:
    name = "lm_head"
    whole = await ask(world, method, "/get_weights_by_name", {"name": name})
    assert (whole.status_code, whole.json()) == (200, [[0.5, 0.25], [1.0, 2.0]])
    one = await ask(world, method, "/get_weights_by_name", {"name": name, "truncate_size": 1})
    assert one.json() == [[0.5, 0.25]]
    unknown = await ask(world, method, "/get_weights_by_name", {"name": "no_such"})
    assert unknown.status_code == 400
    assert "no_such" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"name": "lm_head", "truncate_size": 0}, {"name": 5}])
async def test_a_leaf_must_be_named_rightly(world: World, body: Any) -> None:
    assert (await ask(world, "POST", "/get_weights_by_name", body)).status_code == 400


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_checksums_are_added_up_as_sglang_does(world: World, method: str) -> None:
    async with world.client() as client:
        told = (await client.request(method, "/weights_checker")).json()
    (rank,) = told["ranks"]
    assert (told["success"], told["message"]) == (True, "Success.")
    assert rank["checksums"] == {name: f"{LEAVES[name]:016x}" for name in LEAVES}
    of_all = "".join(f"{name}{LEAVES[name]:016x}" for name in sorted(LEAVES))
    assert rank["per_gpu_checksum"] == sha256(of_all.encode()).hexdigest()
    assert told["per_engine_checksum"] == sha256(rank["per_gpu_checksum"].encode()).hexdigest()
    assert rank["parallelism_info"] == [
        {
            "role": "target",
            "tp_rank": 0,
            "tp_size": 1,
            "dp_rank": 0,
            "dp_size": 1,
            "pp_rank": 0,
            "pp_size": 1,
            "rank": 0,
            "size": 1,
        }
    ]


async def test_what_is_live_is_compared_with_a_snapshot(world: World) -> None:
    async def check(action: str, **more: Any) -> tuple[int, Any]:
        body = {"action": action, "allow_quant_error": False, "selector": "all", **more}
        answer = await ask(world, "POST", "/weights_checker", body)
        return answer.status_code, answer.json()

    none = await check("compare")
    assert (none[0], none[1]["success"]) == (400, False)
    good = (200, {"success": True, "message": "Success."})
    assert await check("snapshot") == good
    world.engine.damage = {"lm_head": 12}
    status, told = await check("compare")
    assert (status, told["success"]) == (400, False)
    assert told["message"].splitlines() == ["check tensor equality failed:", "name=lm_head"]
    assert await check("compare", skip_tensor_list=["lm_head"]) == good


@pytest.mark.parametrize("action", ["reset_tensors", "reset", "tidy"])
async def test_random_weights_and_unknown_checks_are_refused_by_name(
    world: World, action: str
) -> None:
    answer = await ask(world, "POST", "/weights_checker", {"action": action})
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert action in answer.json()["message"]


# --- the tokenizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_tokens_are_told_with_the_keys_of_both_worlds(world: World, path: str) -> None:
    one = await ask(world, "POST", path, {"model": "default", "prompt": "hi"})
    rest = {"max_model_len": 256, "token_strs": None}
    assert one.json() == {"tokens": [104, 105], "count": 2, **rest}
    body = {"prompt": ["hi", "x"], "add_special_tokens": False, "return_token_strs": False}
    batch = await ask(world, "POST", path, body)
    assert batch.json() == {"tokens": [[104, 105], [120]], "count": [2, 1], **rest}
    chat = await ask(
        world, "POST", path, {"messages": [{"role": "user", "content": "hi"}], "tools": None}
    )
    assert chat.json() == {"tokens": [104, 105], "count": 2, **rest}


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_texts_are_told_with_the_keys_of_both_worlds(world: World, path: str) -> None:
    for tokens, text in (
        ([104, 105], "hi"),
        ([], ""),
        ([[104, 105], [120], []], ["hi", "x", ""]),
    ):
        answer = await ask(world, "POST", path, {"tokens": tokens, "skip_special_tokens": True})
        assert answer.json() == {"text": text, "prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/tokenize", {}, "prompt"),
        ("/v1/tokenize", {"prompt": "hi", "messages": [{}]}, "messages"),
        ("/v1/tokenize", {"prompt": "hi", "return_token_strs": True}, "return_token_strs"),
        ("/v1/tokenize", {"prompt": "hi", "tools": [{}]}, "tools"),
        ("/v1/detokenize", {}, "tokens"),
        ("/v1/detokenize", {"tokens": [300]}, "tokens"),
        ("/v1/detokenize", {"tokens": ["hi"]}, "tokens"),
    ],
)
async def test_what_cannot_be_encoded_or_decoded_is_named(
    world: World, path: str, body: Any, name: str
) -> None:
    answer = await ask(world, "POST", path, body)
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


async def test_a_batch_of_texts_is_bounded_as_one_of_prompts_is(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(batch=2)) as world:
        for path, body in (
            ("/v1/tokenize", {"prompt": ["a", "b", "c"]}),
            ("/v1/detokenize", {"tokens": [[1], [2], [3]]}),
        ):
            answer = await ask(world, "POST", path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "batch_too_big")


# --- who may -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_over_tcp_nobody_changes_anything_nor_reads_weights(
    tmp_path: Path, method: str, path: str
) -> None:
    async with serve(tmp_path, tcp=True) as world:
        address = f"http://127.0.0.1:{world.tcp_port}"
        async with httpx.AsyncClient(base_url=address) as client:
            answer = await client.request(method, path, json={"abort_all": True})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
            assert "unix socket" in answer.json()["detail"]
            assert (await client.get("/model_info")).status_code == 200


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_no_web_page_does_either(world: World, method: str, path: str) -> None:
    async with world.client() as client:
        page = {"Origin": "http://localhost:8000", "Content-Type": "application/json"}
        answer = await client.request(method, path, json={"abort_all": True}, headers=page)
    assert answer.status_code == 403


async def test_a_generation_of_another_number_has_another_version() -> None:
    assert [replace(FIRST, number=number).weight_version for number in (7, 70)] == ["7", "70"]
