"""Clients as their makers ship them, unmodified, of one daemon: checkpoints go live beside them."""

import asyncio
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from pydantic import SecretStr

from hotreload.engine.versions import installed_version
from hotreload.types import Generation, Outcome
from tests.features.gateway.scrape import ALWAYS, OF_A_POOL, kinds_of, labels_of, read
from tests.integration.openai_clients import (
    NAMED,
    OpenAILoad,
    free_address,
    generation_of,
    hello,
    openai_client,
    whole_chat,
)
from tests.integration.running import (
    PAUSE,
    PROMPTS,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    request_for,
    words,
)
from tests.integration.upstreams_benchmark import benchmarked
from tests.waiting import PATIENCE, TICK, turn_until

pytestmark = one_daemon_marks()
running = one_daemon(NAMED, f"server.tcp={free_address()}")

FLIPS = 10
Ask = Callable[[str], Awaitable[str]]


async def flip(running: Running) -> Generation:
    """Let one more checkpoint go live; its step is the number of its generation."""
    number = running.live.number + 1
    attempt = await running.attempted(running.drop(number))
    assert attempt.outcome is Outcome.LIVE, attempt
    assert running.live.number == number
    return running.live


# --- OpenAI's, litellm and langchain -----------------------------------------------------------


async def test_a_client_waits_for_the_weights_it_asks_for(running: Running) -> None:
    async with openai_client(running) as client:
        wanted = running.live.number + 1
        ask = {"model": "tiny", "messages": hello(), "temperature": 0}
        asking = asyncio.create_task(
            client.chat.completions.create(
                **ask, extra_headers={"X-Hotreload-Min-Generation": str(wanted)}
            )
        )
        gate = running.daemon.entrance.gates[0]
        await turn_until(lambda: gate.awaiting > 0, pause=TICK)
        await flip(running)
        answer: Any = await asking
    assert generation_of(answer) == wanted
    assert answer.choices[0].message.content == words(wanted)


async def test_a_gateway_reads_the_load_by_sglangs_names_and_it_moves_with_requests(
    running: Running,
) -> None:
    prompt, made = "the same words twice", 0
    async with httpx.AsyncClient(base_url=f"http://{running.settings.server.tcp}") as client:

        async def scrape() -> dict[str, float]:
            return read((await client.get("/metrics")).text)

        await turn_until(lambda: bool(running.engine.load.kv_free), pause=TICK)
        page = (await client.get("/metrics")).text
        assert kinds_of(page) == {**ALWAYS, **OF_A_POOL}
        capacity = running.engine.facts()["max_total_tokens"]
        pool = {"model_name": "tiny", "page_size": "1", "num_pages": str(capacity)}
        assert labels_of(page, "cache_config_info") == pool
        before = read(page)
        async with running.daemon.entrance.admit():  # as an answer that takes long
            assert (await scrape())["num_running_reqs"] == 1
        for streams in (False, True):
            asked = request_for(prompt, stream=streams)
            answer = await client.post("/generate", json=asked)
            last = answer.text.split("data: ")[-2] if streams else answer.text
            meta = json.loads(last)["meta_info"]
            made += meta["completion_tokens"]
        after = await scrape()
        assert (await client.get("/version")).status_code == 404
    moved = {name: after[name] - before[name] for name in after}
    assert moved["generation_tokens_total"] == made
    assert moved["prompt_tokens_total"] == 2 * meta["prompt_tokens"]
    assert moved["time_to_first_token_seconds_count"] == 1
    assert moved["e2e_request_latency_seconds_count"] == 2
    assert moved["inter_token_latency_seconds_count"] == made / 2 - 1
    assert 0 < after["inter_token_latency_seconds_sum"] < after["e2e_request_latency_seconds_sum"]
    assert meta["cached_tokens"] > 0
    assert 0 < after["cache_hit_rate"] < 1
    assert after["gen_throughput"] > 0
    assert after["num_running_reqs"] == after["num_queue_reqs"] == 0
    assert 0 <= after["token_usage"] < 1


@asynccontextmanager
async def ways_of_litellm(base_url: str) -> AsyncIterator[list[Ask]]:
    import litellm  # seconds: none of whoever runs other tests

    usual: Any = {
        "base_url": base_url,
        "api_key": "none",
        "temperature": 0,
        "timeout": PATIENCE,
        "max_retries": 0,
    }

    async def whole(prompt: str) -> str:
        answer: Any = await litellm.acompletion("openai/tiny", hello(prompt), **usual)
        return str(answer.choices[0].message.content)

    async def read_stream(prompt: str) -> str:
        stream: Any = await litellm.acompletion("openai/tiny", hello(prompt), stream=True, **usual)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    yield [whole, read_stream]
    await litellm.close_litellm_async_clients()


@asynccontextmanager
async def ways_of_langchain(base_url: str) -> AsyncIterator[list[Ask]]:
    from langchain_openai import ChatOpenAI  # seconds, too

    model: Any = ChatOpenAI(
        model="tiny", base_url=base_url, api_key=SecretStr("none"), temperature=0, max_retries=0
    )

    async def whole(prompt: str) -> str:
        return str((await model.ainvoke(prompt)).text)

    async def read_stream(prompt: str) -> str:
        return "".join([chunk.text async for chunk in model.astream(prompt)])

    async def several(prompt: str) -> str:
        (said,) = {answer.text for answer in await model.abatch([prompt])}
        return str(said)

    yield [whole, read_stream, several]
    await model.root_async_client.close()


async def asked_until(enough: asyncio.Event, ask: Ask, said: list[str]) -> None:
    """Ask one question after the other; a failure ends the test."""
    for prompt in itertools.cycle(PROMPTS):
        said.append(await ask(prompt))
        if enough.is_set():
            return
        await asyncio.sleep(PAUSE)


async def through_flips(running: Running, ways: list[Ask]) -> list[list[str]]:
    """What each way was told, while checkpoint after checkpoint went live."""
    said: list[list[str]] = [[] for _ in ways]
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for ask, own in zip(ways, said, strict=True):
            tasks.create_task(asked_until(enough, ask, own))
        for _ in range(FLIPS):
            newest = words((await flip(running)).number)
            await turn_until(lambda: newest in said[0], pause=TICK)  # noqa: B023
        enough.set()
    return said


@pytest.fixture
def environment() -> Iterator[None]:
    """Leave none of what litellm puts there: daemons of later tests would be imported anew."""
    with patch.dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="true"):
        yield


@pytest.mark.usefixtures("environment")
async def test_each_client_is_served_before_during_and_after_ten_flips(running: Running) -> None:
    first, load = running.live.number, OpenAILoad(running)
    base_url = f"http://{running.settings.server.tcp}/v1"
    async with (
        openai_client(running) as client,
        ways_of_litellm(base_url) as some,
        ways_of_langchain(base_url) as others,
    ):
        assert await whole_chat(client, "before") == (first, words(first))
        async with load.on():
            said = await through_flips(running, [*some, *others])
        last = first + FLIPS
        assert await whole_chat(client, "after") == (last, words(last))
        assert generation_of(await client.models.retrieve("tiny")) == last
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert {number for number, _ in load.answers} >= set(range(first, last))
    whole = {words(number) for number in range(first, last + 1)}
    for own in said:
        assert set(own) <= whole, "an answer of two generations, or of none"
        assert words(last) in own


# --- upstream's benchmark --------------------------------------------------------------------

BACKENDS = ["sgl-jax", "sglang-oai"]
if installed_version("sglang-jax") != "0.0.2":
    BACKENDS.append("sglang-oai-chat")
REQUESTS = 60
TOKENS = 40
WORKLOAD: dict[str, Any] = {
    "dataset_name": "random-ids",
    "random_input_len": 8,
    "random_output_len": TOKENS,
    "random_range_ratio": 1,
    "num_prompts": REQUESTS,
    "max_concurrency": 6,
}


async def count_flips(running: Running, beside: asyncio.Future[Any]) -> int:
    """Flip while it asks, each time when somebody is inside; return how often."""
    gate = running.daemon.entrance.gates[0]
    for count in itertools.count():
        await turn_until(lambda: gate.inside > 0 or beside.done(), pause=TICK)
        if beside.done():
            return count
        await flip(running)
    raise AssertionError("it never ends")


@pytest.mark.at_night  # by day three makers' clients go through as many flips of the same daemon
async def test_upstreams_benchmark_has_no_failed_request_through_ten_flips(
    running: Running, tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(running.checkpoints / "step_1")
    url, flips, told_by = f"http://{running.settings.server.tcp}", 0, set()
    while flips < FLIPS:  # one run is enough, where nobody else needs the processors
        runs = (benchmarked(tmp_path, url, each, **WORKLOAD) for each in BACKENDS)
        beside = asyncio.gather(*runs)
        flips += await count_flips(running, beside)
        for told in await beside:
            told_by |= whole_answers(told)
    assert len(told_by) > FLIPS // 2


def whole_answers(told: dict[str, Any]) -> set[str]:
    """The steps that answered; every answer was whole, and by one of them."""
    sent = told["completed"]  # 0.1 leaves out prompts that change when they are decoded
    assert REQUESTS // 2 < sent <= REQUESTS
    assert (told["errors"], told["output_lens"]) == ([""] * sent, [TOKENS] * sent)
    steps = [set(re.findall(r"\d+", text)) for text in told["generated_texts"]]
    assert {len(each) for each in steps} == {1}, "an answer of two generations, or of none"
    return set().union(*steps)
