"""Requests that do not end when a swap wants to begin, on the real engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hotreload.types import Outcome
from tests.integration.running import Running, words

pytestmark = pytest.mark.real_engine

LONG = {"temperature": 0, "max_new_tokens": 500, "ignore_eos": True}
ROOM = (
    "engine.args={max_total_tokens=2048,context_length=1024,max_running_requests=4,"
    "chunked_prefill_size=64,precompile_bs_paddings=[4]}"
)


class LongAnswer:
    """A request that streams for seconds; `begun` once it is inside."""

    def __init__(self, running: Running, tokens: int = 500) -> None:
        self.begun = asyncio.Event()
        self.last: dict[str, Any] = {}
        self.task = asyncio.create_task(self._read(running, {**LONG, "max_new_tokens": tokens}))

    async def _read(self, running: Running, sampling: dict[str, Any]) -> dict[str, Any]:
        body = {"text": "x", "sampling_params": sampling, "stream": True}
        async with running.client() as client, client.stream("POST", "/generate", json=body) as got:
            async for line in got.aiter_lines():
                if line.startswith("data: {"):
                    self.last = json.loads(line.removeprefix("data: "))
                    self.begun.set()
        return self.last


async def test_postponed_swaps_wait_for_the_long_answer_and_then_happen(tmp_path: Path) -> None:
    running = Running(tmp_path, ROOM, "reload.mode=drain", "reload.drain_timeout=0.05")
    running.drop(1)
    async with running.serving():
        long = LongAnswer(running)
        await long.begun.wait()
        attempt = await running.attempted(running.drop(2))
        assert attempt.outcome is Outcome.POSTPONED
        assert attempt.reason is not None
        assert "drain_timeout" in attempt.reason.message
        answer = await long.task
        assert answer["meta_info"]["completion_tokens"] == LONG["max_new_tokens"]
        assert answer["meta_info"]["generation"] == 1
        await running.until(lambda: running.live.number == 2)
        assert (await running.ask())["text"] == words(2)


async def test_aborted_answers_say_so_and_the_swap_goes_on(tmp_path: Path) -> None:
    running = Running(
        tmp_path,
        ROOM,
        "reload.mode=drain",
        "reload.drain_timeout=0.05",
        "reload.on_drain_timeout=abort",
    )
    running.drop(1)
    async with running.serving():
        long = LongAnswer(running)
        await long.begun.wait()
        attempt = await running.attempted(running.drop(2))
        answer = await long.task
        assert attempt.outcome is Outcome.LIVE
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert "swap" in answer["meta_info"]["finish_reason"]["message"]
        assert answer["meta_info"]["generation"] == 1
        async with running.client() as client:
            page = (await client.get("/metrics")).text
        assert 'hotreload_requests_total{code="503",route="/generate"} 1.0' in page
        assert (await running.ask())["text"] == words(2)


async def test_what_has_sent_nothing_yet_runs_again_on_the_new_weights(tmp_path: Path) -> None:
    running = Running(
        tmp_path,
        ROOM,
        "reload.mode=drain",
        "reload.drain_timeout=0.05",
        "reload.on_drain_timeout=replay",
    )
    running.drop(1)
    async with running.serving(), running.client() as client:
        streaming = LongAnswer(running)
        await streaming.begun.wait()
        body = {"text": "x", "sampling_params": {**LONG, "max_new_tokens": 200}}
        whole = asyncio.create_task(client.post("/generate", json=body))
        attempt = await running.attempted(running.drop(2))
        seen, replayed = await streaming.task, (await whole).json()
        assert attempt.outcome is Outcome.LIVE
        assert seen["meta_info"]["finish_reason"]["code"] == "swap"
        assert seen["meta_info"]["generation"] == 1
        assert replayed["meta_info"]["generation"] == 2
        assert replayed["meta_info"]["completion_tokens"] == 200
        assert replayed["text"].startswith(words(2))
