"""SGLang's routes on a whole daemon with the real engine, as trainers and routers ask them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx

from hotreload.features.pause.pause import Pause
from tests.features.admissions import admission_of
from tests.integration.running import Running, one_daemon, one_daemon_marks, request_for, words

pytestmark = one_daemon_marks()

running = one_daemon("server.model_name=tiny")
ENDLESS = {"max_new_tokens": 200, "temperature": 0, "ignore_eos": True}


async def ask(running: Running, method: str, path: str, body: Any = None) -> httpx.Response:
    async with running.client() as client:
        return await client.request(method, path, json=body)


async def answer_of(running: Running, method: str, path: str, body: Any = None) -> Any:
    answer = await ask(running, method, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_router_and_a_trainer_read_what_they_are_looking_for(running: Running) -> None:
    info = await answer_of(running, "GET", "/model_info")
    assert (info["served_model_name"], info["weight_version"]) == ("tiny", "1")
    assert (info["model_type"], info["architectures"]) == ("qwen3", ["Qwen3ForCausalLM"])
    assert (Path(info["tokenizer_path"]) / "tokenizer.json").exists()
    server = await answer_of(running, "GET", "/server_info")
    whole_numbers = ("tp_size", "dp_size", "pp_size", "max_total_tokens", "max_running_requests")
    assert all(type(server[name]) is int and server[name] > 0 for name in whole_numbers)
    assert (server["max_total_tokens"], server["context_length"]) == (2048, 256)
    assert server["disaggregation_mode"] == "null"
    assert (await ask(running, "GET", "/health_generate")).content == b""


NONE = {"max_new_tokens": 0, "temperature": 0}


async def test_an_answer_of_no_token_is_given_by_every_route(running: Running) -> None:
    """A prefill alone, as upstream's own benchmark begins with it."""
    said = (await running.ask())["text"]
    one = await answer_of(running, "POST", "/generate", {"text": "Who?", "sampling_params": NONE})
    none_in(one)
    sampling = [NONE, request_for("")["sampling_params"], NONE]
    prompts = ["Who?", "Who serves?", "And now?"]
    batch = {"text": prompts, "sampling_params": sampling}
    first, usual, last = await answer_of(running, "POST", "/generate", batch)
    none_in(first)
    none_in(last)
    assert usual["text"] == said
    pieces = await read_stream(running, "/generate", {"text": "Who?", "sampling_params": NONE})
    none_in(pieces[-1])
    several = await read_stream(running, "/generate", batch)
    assert {each["index"]: each["text"] for each in several} == {0: "", 1: said, 2: ""}

    zero = {"model": "tiny", "max_tokens": 0, "temperature": 0}
    for path, prompt, text in (
        ("/v1/completions", {"prompt": "Who?"}, ""),
        ("/v1/completions", {"prompt": "Who?", "echo": True}, "Who?"),
        ("/v1/chat/completions", CHAT, ""),
    ):
        answer = await answer_of(running, "POST", path, zero | prompt)
        (choice,) = answer["choices"]
        told_text = choice["message"]["content"] if prompt is CHAT else choice["text"]
        assert (told_text, choice["finish_reason"]) == (text, "length")
        usage = answer["usage"]
        assert (usage["completion_tokens"], usage["total_tokens"]) == (0, usage["prompt_tokens"])
        ends = [
            choice["finish_reason"]
            for piece in await read_stream(running, path, zero | prompt)
            for choice in piece["choices"]
        ]
        assert ends[-1] == "length"
    response = {"model": "tiny", "input": "Who?", "max_output_tokens": 0}
    answer = await answer_of(running, "POST", "/v1/responses", response)
    assert (answer["status"], answer["usage"]["output_tokens"]) == ("incomplete", 0)
    generated = {"inputs": "Who?", "parameters": {"max_new_tokens": 0}}
    (answer,) = await answer_of(running, "POST", "/", generated)
    assert answer["generated_text"] == ""


CHAT = {"messages": [{"role": "user", "content": "Who?"}]}


def none_in(answer: dict[str, Any]) -> None:
    """It ended before its first token."""
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"], meta["completion_tokens"]) == ("", [], 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["prompt_tokens"] > 0


async def read_stream(running: Running, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream that came to its end."""
    async with (
        running.client() as client,
        client.stream("POST", path, json={**body, "stream": True}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_the_version_moves_with_the_weights_and_stands_in_each_answer(
    running: Running,
) -> None:
    await running.attempted(running.drop(2))
    answer = await running.ask()
    assert answer["text"] == words(2)
    number = str(running.live.number)
    assert answer["meta_info"]["weight_version"] == number
    assert (await answer_of(running, "GET", "/model_info"))["weight_version"] == number


async def test_an_abort_ends_a_stream_and_the_load_falls_to_0(running: Running) -> None:
    body = {"text": "Who serves?", "sampling_params": ENDLESS, "stream": True, "rid": "mine"}
    async with (
        running.client() as client,
        client.stream("POST", "/generate", json=body) as answer,
    ):
        lines = (line async for line in answer.aiter_lines() if line)
        await anext(lines)
        (load,) = (await answer_of(running, "GET", "/v1/loads?include=core"))["loads"]
        assert load["num_running_reqs"] + load["num_waiting_reqs"] >= 1
        assert (await ask(running, "POST", "/abort_request", {"rid": "mine"})).status_code == 200
        rest = [line async for line in lines]
    assert rest[-1] == "data: [DONE]"
    ended = json.loads(rest[-2].removeprefix("data: "))["meta_info"]["finish_reason"]
    assert (ended["type"], ended["message"], ended["status_code"]) == ("abort", "Aborted", None)
    (idle,) = await answer_of(running, "GET", "/get_load")
    assert idle["num_reqs"] == 0


async def test_a_flush_is_done_at_once_under_load_and_disturbs_nobody(running: Running) -> None:
    said = (await running.ask())["text"]
    asks = [asyncio.create_task(running.ask()) for _ in range(8)]
    for _ in range(3):
        answer = await ask(running, "GET", "/flush_cache")
        assert (answer.status_code, answer.text[:15]) == (200, "Cache flushed.\n")
    assert {(await ask)["text"] for ask in asks} == {said}
    again = await answer_of(running, "POST", "/generate", request_for("Who serves?"))
    assert again["text"] == said


async def test_numbers_are_those_of_the_file_and_of_the_leaf(running: Running) -> None:
    name, turned = "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"
    rows = await first_values(running, name, 3)
    all_rows = await first_values(running, turned, 10**6)
    in_files = tensors(running)
    assert (len(all_rows), len(all_rows[0])) == in_files[turned].shape
    for given, tensor in ((rows, name), (all_rows, turned)):
        assert given == in_files[tensor].astype("float32")[: len(given)].tolist()
    for leaf in (await answer_of(running, "GET", "/leaves"))["leaves"]:
        assert await first_values(running, leaf, 1)


async def first_values(running: Running, name: str, most: int) -> Any:
    body = {"name": name, "truncate_size": most}
    return await answer_of(running, "POST", "/get_weights_by_name", body)


def tensors(running: Running) -> Any:
    from safetensors.flax import load_file

    return load_file(running.checkpoints / running.live.revision.label / "model.safetensors")


async def test_checksums_are_the_leaves_and_a_new_generation_is_told_from_a_snapshot(
    running: Running,
) -> None:
    leaves = (await answer_of(running, "GET", "/leaves"))["leaves"]
    checked = await answer_of(running, "POST", "/weights_checker", {"action": "checksum"})
    assert checked["ranks"][0]["checksums"] == {name: f"{leaves[name]:016x}" for name in leaves}
    for action in ("snapshot", "compare", "snapshot"):
        await answer_of(running, "POST", "/weights_checker", {"action": action})
    await running.attempted(running.drop(3))
    answer = await ask(running, "POST", "/weights_checker", {"action": "compare"})
    assert (answer.status_code, answer.json()["success"]) == (400, False)


async def test_what_is_tokenized_is_what_the_model_is_asked(running: Running) -> None:
    tokens = (await answer_of(running, "POST", "/v1/tokenize", {"prompt": "Who serves?"}))["tokens"]
    text = await answer_of(running, "POST", "/v1/detokenize", {"tokens": tokens})
    assert text == {"text": "Who serves?", "prompt": "Who serves?"}
    by_ids = {"input_ids": tokens, "sampling_params": request_for("")["sampling_params"]}
    answer = await answer_of(running, "POST", "/generate", by_ids)
    assert answer["meta_info"]["prompt_tokens"] == len(tokens)
    assert answer["text"] == (await running.ask())["text"]


async def paused_with_a_stream(running: Running, body: Any) -> tuple[Any, Any]:
    """What the pause answers while a stream is under way, and the stream's last piece but one."""
    ask = {"text": "Who serves?", "sampling_params": ENDLESS, "stream": True}
    async with running.client() as client, client.stream("POST", "/generate", json=ask) as answer:
        lines = (line async for line in answer.aiter_lines() if line)
        await anext(lines)
        applied = await answer_of(running, "POST", "/pause_generation", body)
        rest = [line async for line in lines]
    assert rest[-1] == "data: [DONE]"
    return applied, json.loads(rest[-2].removeprefix("data: "))["meta_info"]


async def test_a_trainers_pause_holds_those_who_come_while_a_checkpoint_goes_live(
    running: Running,
) -> None:
    before = running.live.number
    ended = asyncio.create_task(paused_with_a_stream(running, {"mode": "retract"}))
    pause = admission_of(running.daemon.entrance, Pause)
    await running.until(lambda: pause.stands)
    held = [asyncio.create_task(running.ask()) for _ in range(4)]
    await running.attempted(running.drop(4))
    assert (await ask(running, "GET", "/flush_cache")).status_code == 200
    assert (await answer_of(running, "GET", "/status"))["pause"]["held"] == 4
    applied, last = await ended
    assert (applied["success"], applied["mode_applied"]) == (True, "finish")
    assert (last["generation"], last["finish_reason"]["type"]) == (before, "length")
    for path in ("/health_generate", "/weights_checker"):
        assert (await ask(running, "GET", path)).status_code == 200
    assert not any(each.done() for each in held)
    await answer_of(running, "POST", "/continue_generation", {})
    assert {(await each)["text"] for each in held} == {words(4)}


def live_text(running: Running) -> str:
    """What the live checkpoint says."""
    return words(int(running.live.revision.label.rpartition("_")[2]))


async def test_a_pause_that_aborts_does_and_one_that_nobody_ends_is_over_by_itself(
    running: Running,
) -> None:
    pause = admission_of(running.daemon.entrance, Pause)
    pause.limit = 0.5
    applied, last = await paused_with_a_stream(running, {})
    assert applied["mode_applied"] == last["finish_reason"]["type"] == "abort"
    assert (await running.ask())["text"] == live_text(running)
    status = await answer_of(running, "GET", "/status")
    assert status["pause"] is None
    (trouble,) = status["troubles"]
    caller = f"user {os.getuid()} (pid {os.getpid()}) through /pause_generation paused at 20"
    assert (trouble["code"], caller in trouble["message"]) == ("pause_lapsed", True), trouble
    pause.limit = 60
    await answer_of(running, "POST", "/pause?mode=keep")
    held = asyncio.create_task(running.ask())
    await running.until(lambda: pause.held == 1)
    before = running.live.number
    async with running.client() as client:
        back = await client.post("/admin/rollback", json={})
    assert back.status_code == 200, back.text
    assert not held.done()
    await answer_of(running, "POST", "/resume")
    assert (await held)["meta_info"]["generation"] == before + 1
    assert (await answer_of(running, "GET", "/status"))["troubles"] == []
