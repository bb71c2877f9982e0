"""Upstream's own benchmark, as it is shipped, over TCP while checkpoints go live."""

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.versions import installed
from hotreload.types import Outcome
from tests.integration.running import Running
from tests.integration.test_openai import NAMED, free_address
from tests.integration.upstreams_benchmark import benchmarked
from tests.waiting import turn_until

pytestmark = pytest.mark.real_engine

BACKENDS = ["sgl-jax", "sglang-oai"]
if installed("sglang-jax") != "0.0.2":
    BACKENDS.append("sglang-oai-chat")
REQUESTS = 30
TOKENS = 20
WORKLOAD: dict[str, Any] = {
    "dataset_name": "random-ids",
    "random_input_len": 8,
    "random_output_len": TOKENS,
    "random_range_ratio": 1,
    "num_prompts": REQUESTS,
    "max_concurrency": 6,
}


async def flipped(running: Running) -> None:
    """Drop checkpoint after checkpoint while somebody asks, each when the one before is live."""
    for number in itertools.count(2):
        await turn_until(lambda: running.daemon.entrance.gates[0].inside > 0, pause=0.05)
        attempt = await running.attempted(running.drop(number))
        assert attempt.outcome is Outcome.LIVE, attempt


async def test_upstreams_benchmark_has_no_failed_request_while_checkpoints_go_live(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, NAMED, f"server.tcp={free_address()}")
    (tmp_path / "tiny").symlink_to(running.drop(1))
    async with running.serving():
        flips = asyncio.create_task(flipped(running))
        url = f"http://{running.settings.server.tcp}"
        runs = (benchmarked(tmp_path, url, each, **WORKLOAD) for each in BACKENDS)
        results = await asyncio.gather(*runs)
        assert not flips.done()
        flips.cancel()
    told_by: set[str] = set()
    for told in results:
        sent = told["completed"]  # 0.1 leaves out prompts that change when they are decoded
        assert REQUESTS // 2 < sent <= REQUESTS
        assert (told["errors"], told["output_lens"]) == ([""] * sent, [TOKENS] * sent)
        steps = [set(re.findall(r"\d+", text)) for text in told["generated_texts"]]
        assert {len(each) for each in steps} == {1}, "an answer of two generations, or of none"
        told_by.update(*steps)
    assert len(told_by) >= 3
