"""What RL trainers ask of a server to have their weights answer, request by request, over TCP.

Each sequence is the one that the named project's code makes, with what that reads of the answers
and what would make it give up. The trainers send no `Authorization` of their own; an HTTP proxy
beside them, or their client's default headers, add the admin key.

That a trainer which dies after its pause holds nobody for ever is shown in test_sglang_routes.py.
"""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from hotreload.server.http.server_sockets import bind_tcp
from hotreload.tiny import write_tiny
from tests.integration.running import Running, one_daemon_marks, post, words
from tests.waiting import PATIENCE, turn_until

pytestmark = one_daemon_marks()

KEY = "an-admin-key-of-24-chars"
SAMPLING = {"temperature": 0, "top_p": 1.0, "max_new_tokens": 12}


SLIMES = {
    **SAMPLING,
    "top_k": -1,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": True,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}


class Trainer:
    """Writes checkpoints beside the source's folder, and speaks to the daemon over TCP."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.headers = {"Authorization": f"Bearer {KEY}"}

    def writes(self, number: int, name: str, damage: str | None = None) -> Path:
        return write_tiny(self.folder / name, words(number), damage=damage)

    async def asks(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx.Response:
        address = f"http://{self.running.settings.server.tcp}"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
            headers = self.headers | headers
            return await client.request(method, path, json=body, headers=headers)

    async def raises(self, method: str, path: str, body: Any = None) -> Any:
        """As `response.raise_for_status(); return response.json()`, which most of them write."""
        answer = await self.asks(method, path, body)
        answer.raise_for_status()
        return answer.json()

    async def rollout(self, prompt: str = "Who serves?", **more: Any) -> Any:
        """POST /generate by the ids of tokens, as trainers do."""
        tokens = (await self.raises("POST", "/v1/tokenize", {"prompt": prompt}))["tokens"]
        body = {"input_ids": tokens, "sampling_params": SAMPLING, **more}
        return await self.raises("POST", "/generate", body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trainer]:
    folder = tmp_path_factory.mktemp("daemon")
    keys, theirs = folder / "admin-keys", folder / "trainer"
    keys.write_text(KEY)
    theirs.mkdir()
    with bind_tcp("127.0.0.1:0") as free:
        tcp = f"server.tcp=127.0.0.1:{free.getsockname()[1]}"
    roots = f"server.update_roots=['{theirs}']"
    named = f"server.admin_keys_file={keys}"
    running = Running(folder, tcp, named, roots, "server.model_name=tiny")
    running.drop(1)
    async with running.serving():
        yield Trainer(running, theirs)
    assert running.exit_code == 0


@asynccontextmanager
async def rolling_out(trainer: Trainer) -> AsyncIterator[list[tuple[str, str]]]:
    """Rollouts without end beside the block; each is kept as its version and its text.

    One that the trainer's pause has aborted is begun anew, as trainers do.
    """
    heard: list[tuple[str, str]] = []
    enough = asyncio.Event()

    async def go_on() -> None:
        while not enough.is_set():
            answer = await trainer.rollout()
            if answer["meta_info"]["finish_reason"]["type"] != "abort":
                heard.append((answer["meta_info"]["weight_version"], answer["text"]))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(go_on())
        try:
            yield heard
        finally:
            enough.set()


def with_logprobs(trainer: Trainer) -> dict[str, Any]:
    """What trainers ask for in each rollout; engine 0.0.2 has none, and it is refused there."""
    return {"return_logprob": True} if trainer.running.engine.answers.capabilities.logprobs else {}


def assert_logprobs(trainer: Trainer, answer: Any) -> None:
    """Look for a log-probability and the id of each token, as trainers read them."""
    if with_logprobs(trainer):
        pairs = [each[:2] for each in answer["meta_info"]["output_token_logprobs"]]
        assert len(pairs) == answer["meta_info"]["completion_tokens"] > 0
        assert all(logprob <= 0 and type(token) is int for logprob, token in pairs)


async def is_paused(trainer: Trainer) -> bool:
    paused: bool = (await trainer.raises("GET", "/is_paused"))["is_paused"]
    return paused


async def test_slime(trainer: Trainer) -> None:
    """THUDM/slime 624b824a898ab0ec1fcb4d373004c7f3852bf515: `_reload_rollout_weights_from_disk`."""
    # D1, slime/backends/sglang_utils/external.py:74-120: discovery, int() of what is there
    told = await trainer.raises("GET", "/server_info")
    assert [int(told[name]) for name in ("pp_size", "tp_size", "num_gpus")] == [1, 1, 1]
    # H, sglang_engine.py:223-243
    assert (await trainer.asks("GET", "/health_generate")).status_code == 200
    before = await trainer.rollout()
    async with rolling_out(trainer) as heard:
        folder = trainer.writes(7, "weight_v000007")
        # U1, slime/ray/actor_group.py:244; sglang_engine.py:423-428
        assert (await trainer.asks("POST", "/pause_generation", {})).is_success
        assert await is_paused(trainer)
        # U2, actor_group.py:245; sglang_engine.py:270-289: until it is 200
        assert (await trainer.asks("GET", "/flush_cache")).status_code == 200
        # U3, actor_group.py:246-254; sglang_engine.py:358-370: raises, and reads JSON
        body = {"model_path": str(folder), "weight_version": "7"}
        said = await trainer.raises("POST", "/update_weights_from_disk", body)
        assert (said["success"], said["num_paused_requests"]) == (True, 0)
        # U4, actor_group.py:255-266; sglang_engine.py:320-326: RuntimeError unless str() == str()
        told = await trainer.raises("GET", "/get_weight_version")
        assert told["weight_version"] == "7"
        # U5, actor_group.py:267-268: the folder is removed, before U6
        shutil.rmtree(folder)
        # U6, actor_group.py:269; sglang_engine.py:430-435
        assert await is_paused(trainer)
        assert (await trainer.asks("POST", "/continue_generation", {})).is_success
        after = await trainer.rollout(**with_logprobs(trainer), sampling_params=SLIMES)
    # R, slime/rollout/sglang_rollout.py:94-108,152-221; slime/utils/types.py:397-416
    assert (after["text"], after["meta_info"]["weight_version"]) == (words(7), "7")
    assert after["meta_info"]["finish_reason"]["type"] in ("length", "abort", "stop")
    assert_logprobs(trainer, after)
    assert set(heard) <= {(before["meta_info"]["weight_version"], words(1)), ("7", words(7))}
    # A, sglang_rollout.py:339-352; sglang_utils/server_control.py:12-63: until nothing is left
    assert (await trainer.asks("POST", "/abort_request", {"abort_all": True})).status_code == 200
    loads = (await trainer.raises("GET", "/v1/loads?include=core"))["loads"]
    assert sum(each["num_running_reqs"] + each["num_waiting_reqs"] for each in loads) == 0
    # C, sglang_engine.py:341
    assert (await trainer.raises("POST", "/weights_checker", {"action": "checksum"}))["success"]
    # U0, sglang_engine.py:344-356: only its own image has that
    pulls = {"local_checkpoint_dir": "/a", "source_dir": "/b", "target_version": 8}
    refused = await trainer.asks("POST", "/pull_weights", pulls)
    assert (refused.status_code, "/pull_weights" in refused.json()["message"]) == (400, True)


async def test_a_folder_that_becomes_a_link_while_it_is_looked_at_is_told_as_such(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a link that becomes a folder: it is one as it is found, and none as it is followed."""
    link = trainer.folder / "link"
    link.symlink_to(trainer.writes(19, "behind_a_link"))
    readlink, follows = os.readlink, 0

    def follow(path: Any, **more: Any) -> Any:
        nonlocal follows
        if Path(os.fsdecode(path)) == link:
            follows -= 1
            if follows < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(link))
        return readlink(path, **more)

    monkeypatch.setattr(os, "readlink", follow)
    orders = {
        "/admin/reload_weights": {"model_path": str(link), "dry_run": True},
        "/update_weights_from_disk": {"model_path": str(link)},
    }
    for route, body in orders.items():
        told: list[int] = []
        for so_far in range(20):
            follows = so_far
            answer = await trainer.asks("POST", route, body)
            told.append(answer.status_code)
            if answer.status_code == 200:
                break
            assert "Invalid argument" in answer.text, answer.text
        assert set(told[:-1]) <= {400, 422}, told
        assert len(told) > 1
        assert told[-1] == 200


async def test_miles(trainer: Trainer) -> None:
    """radixark/miles 31f1ca961a94cb860cec3b2dea34ec332bfa8f76: delta.py, and its evaluation."""
    folder = trainer.writes(8, "miles_8")
    # U1, megatron_utils/update_weight/update_weight_from_distributed/delta.py:252
    paused = await trainer.raises("POST", "/pause_generation", {"mode": "retract"})
    assert (paused["success"], paused["mode_applied"]) == (True, "finish")
    # U2, delta.py:254; sglang_engine.py:445-463
    assert (await trainer.asks("GET", "/flush_cache")).status_code == 200
    # U3, delta.py:256-265; sglang_engine.py:557-571; common.py:432-450: success must be true
    body = {"model_path": str(folder), "weight_version": "8"}
    assert (await trainer.raises("POST", "/update_weights_from_disk", body))["success"] is True
    # U4, delta.py:266
    assert (await trainer.raises("POST", "/continue_generation", {}))["success"] is True
    # E, ray/rollout/eval_fleet.py:62-90; sglang_engine.py:499-508
    assert (await trainer.raises("GET", "/model_info"))["weight_version"] == "8"
    assert (await trainer.rollout())["meta_info"]["weight_version"] == "8"
    # N, …/mixin.py:313-331; sglang_engine.py:636-648: the way by NCCL is refused, by name
    for path in ("/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"):
        answer = await trainer.asks("POST", path, {"selector": "all"})
        assert (answer.status_code, answer.json()["success"]) == (400, False)
    # the last of N, sglang_engine.py:636-648
    named = {"new_version": "8b", "abort_all_requests": False}
    assert (await trainer.raises("POST", "/update_weight_version", named))["new_version"] == "8b"
    assert (await trainer.rollout())["meta_info"]["weight_version"] == "8b"
    # W, sglang_engine.py:534-541
    check = {"action": "checksum", "allow_quant_error": False, "selector": "all"}
    assert (await trainer.raises("POST", "/weights_checker", check))["success"] is True


async def test_areal(trainer: Trainer) -> None:
    """inclusionAI/AReaL 4aef98d8d818af55b43621aaadba047ae10f4e77: areal/engine/sglang_remote.py."""
    # H, sglang_remote.py:281
    assert (await trainer.asks("GET", "/health")).is_success
    folder = trainer.writes(9, "areal_9")
    endless = {**SAMPLING, "max_new_tokens": 200, "ignore_eos": True}
    rollout = trainer.rollout(sampling_params=endless, **with_logprobs(trainer))
    under_way = asyncio.create_task(rollout)
    await turn_until(lambda: trainer.running.daemon.entrance.inside == 1)
    # U1, sglang_remote.py:273; infra/remote_inf_engine.py:1204-1212
    await trainer.raises("POST", "/pause_generation", {})
    ended = await under_way
    assert ended["meta_info"]["finish_reason"]["type"] in ("abort", "length")
    assert_logprobs(trainer, ended)  # RuntimeError without them, unless it never began
    # U2, sglang_remote.py:148-159; remote_inf_engine.py:1331-1352: no version; 4xx is tried thrice
    body = {"model_path": str(folder), "abort_all_requests": True}
    answer = await trainer.asks("POST", "/update_weights_from_disk", body)
    assert answer.is_success
    assert answer.headers["content-type"] == "application/json"
    # U3, sglang_remote.py:277; 1214-1218
    await trainer.raises("POST", "/continue_generation", {})
    number = str(trainer.running.live.number)
    # R, sglang_remote.py:56-127; remote_inf_engine.py:787-858; io_struct.py:39; cli_args.py:189
    sampling = {
        **SAMPLING,
        "top_k": 100000000,
        "stop_token_ids": [],
        "ignore_eos": False,
        "skip_special_tokens": True,
        "frequency_penalty": 0.0,
    }
    more: dict[str, Any] = {"image_data": [], "stream": False, **with_logprobs(trainer)}
    said = await trainer.rollout(**more, sampling_params=sampling)
    assert_logprobs(trainer, said)
    assert (said["text"], said["meta_info"]["weight_version"]) == (words(9), number)
    assert said["meta_info"]["finish_reason"]["type"] == "stop"


async def test_prime_rl(trainer: Trainer) -> None:
    """PrimeIntellect-ai/prime-rl 559b44772e471d1538537b8805cc77f3824a5e64: utils/client.py."""
    # H, src/prime_rl/utils/client.py:159-202: ValueError unless the model is there
    assert (await trainer.asks("GET", "/health")).status_code == 200
    models = (await trainer.raises("GET", "/v1/models"))["data"]
    assert "tiny" in [each["id"] for each in models]
    folder = trainer.writes(10, "step_10")
    # U1, client.py:208-260
    assert (await trainer.asks("POST", "/pause?mode=keep&clear_cache=false")).status_code == 200
    # U1b, client.py:302-306: a mark inside the folder
    (folder / "NCCL_READY").touch()
    # U2, client.py:308-318: the status is all that it reads; 4xx raises at once
    answer = await trainer.asks("POST", "/update_weights", {"weight_dir": str(folder)})
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    # U3, client.py:263-271,319-320
    assert (await trainer.asks("POST", "/resume")).status_code == 200
    # R, orchestrator/dispatcher.py:520, envs.py:87-92, without its cache_salt
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
    said = await trainer.asks("POST", "/v1/chat/completions", chat, **{"X-Session-ID": "t1"})
    assert said.json()["choices"][0]["message"]["content"] == words(10)
    number = str(trainer.running.live.number)
    assert (await trainer.raises("GET", "/weight_info"))["weight_version"] == number
    refused = await trainer.asks("POST", "/update_weights", {"weight_dir": None})
    assert (refused.status_code, "weight_dir" in refused.text) == (400, True)


async def test_skyrl(trainer: Trainer) -> None:
    """NovaSky-AI/SkyRL a9564572eb8e91076be43c1bd5e4615e3de17265: remote_inference_client.py."""
    # W, …/inference_servers/remote_inference_client.py:1358-1400: a body with GET
    assert (await trainer.raises("GET", "/get_world_size", {}))["world_size"] == 1
    # U1, remote_inference_client.py:985-1009
    assert (await trainer.asks("POST", "/pause?mode=keep&clear_cache=false")).status_code == 200
    # U2, :1086-1099; its body is none that vLLM reads
    body = {"reset_running_requests": True}
    answer = await trainer.asks("POST", "/reset_prefix_cache", body)
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert int(answer.headers["content-length"]) > 0  # :957: it reads no chunked answer
    # U0, U3, U5, :1154-1270: weights come through calls into vLLM's workers; refused by name
    for path in ("/fetch_weights", "/collective_rpc"):
        refused = await trainer.asks("POST", path, {"method": "skyrl_start_weight_update"})
        assert refused.status_code == 400
        assert path in refused.json()["error"]["message"]  # :1451-1468
    # U6, delta_strategy.py:79-87
    assert (await trainer.asks("POST", "/resume")).status_code == 200
    assert not await is_paused(trainer)
    # K, :827-892
    asked = {"model": "tiny", "prompt": "hi", "add_special_tokens": True}
    tokens = (await trainer.raises("POST", "/tokenize", asked))["tokens"]
    back = await trainer.raises("POST", "/detokenize", {"model": "tiny", "tokens": tokens})
    assert back["prompt"] == "hi"


@pytest.mark.parametrize("damage", ["nan", "wrong-shape", "truncated"])
async def test_a_bad_checkpoint_fails_the_update_and_nobody_else(
    trainer: Trainer, damage: str
) -> None:
    before = await trainer.rollout()
    folder = trainer.writes(11, f"bad_{damage}", damage)
    body = {"model_path": str(folder), "weight_version": "11"}
    async with rolling_out(trainer) as heard:
        for again in (False, True):
            answer = await trainer.asks("POST", "/update_weights_from_disk", body)
            said = answer.json()
            assert (answer.status_code, said["success"]) == (400, False)
            assert said["num_paused_requests"] == 0
            assert ("refused before" in said["message"]) == again
    version = before["meta_info"]["weight_version"]
    assert set(heard) == {(version, before["text"])}
    assert (await trainer.raises("GET", "/get_weight_version"))["weight_version"] == version


async def test_only_folders_that_may_be_read_are(trainer: Trainer, tmp_path: Path) -> None:
    elsewhere = write_tiny(tmp_path / "elsewhere", words(12))
    link = trainer.folder / "another_link"
    link.symlink_to(elsewhere)
    for folder in (elsewhere, link, trainer.folder / ".." / ".." / "elsewhere"):
        body = {"model_path": str(folder)}
        answer = await trainer.asks("POST", "/update_weights_from_disk", body)
        assert (answer.status_code, answer.json()["success"]) == (400, False)
        assert "[server] update_roots" in answer.json()["message"]
    gone = {"model_path": str(trainer.folder / "gone")}
    answer = await trainer.asks("POST", "/update_weights_from_disk", gone)
    assert (answer.status_code, "no such folder" in answer.json()["message"]) == (400, True)


async def test_a_rollback_brings_the_trainers_version_back_and_history_names_it(
    trainer: Trainer,
) -> None:
    for number, version in ((13, "run/13"), (14, "run/14")):
        body = {"model_path": str(trainer.writes(number, f"w{number}")), "weight_version": version}
        await trainer.raises("POST", "/update_weights_from_disk", body)
    assert (await post(trainer.running, "rollback")).status_code == 200
    said = await trainer.rollout()
    assert (said["text"], said["meta_info"]["weight_version"]) == (words(13), "run/13")
    attempts = (await trainer.raises("GET", "/history"))["attempts"][:3]
    assert [each["weight_version"] for each in attempts] == ["run/13", "run/14", "run/13"]
    by = attempts[1]["by"]
    assert (by["route"], by["uid"]) == ("/update_weights_from_disk", None)
    assert by["address"].startswith("127.0.0.1:")
    assert KEY not in str(attempts)


async def test_a_trainer_without_the_key_changes_nothing(trainer: Trainer) -> None:
    before = await trainer.raises("GET", "/get_weight_version")
    body = {"model_path": str(trainer.writes(15, "w15"))}
    for key in ("", "Bearer not-the-key-of-24-chars"):
        answer = await trainer.asks("POST", "/update_weights_from_disk", body, Authorization=key)
        assert answer.status_code == 401
    assert await trainer.raises("GET", "/get_weight_version") == before
    assert (await trainer.running.ask())["text"] == (await trainer.rollout())["text"]
