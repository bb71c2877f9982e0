"""What several engines in one daemon give and cost: tokens a second, memory, reloads under load."""

import asyncio
import time
from pathlib import Path

import pytest

from hotreload.types import Outcome
from tests.bench.figures import median
from tests.bench.test_memory import resident
from tests.bench.test_overlap import Tokens, percentile
from tests.engine.real import device_bytes
from tests.integration.running import Running
from tests.integration.test_replicas import all_serve

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(1800)]

ENGINE = (
    "engine.args={max_total_tokens=8192,context_length=512,max_running_requests=8,"
    "chunked_prefill_size=128}"
)
RELOADS = 30
REST = 4.0
"""Seconds in which nothing is reloaded, between every few reloads: what they are compared with."""


async def test_first_tokens_through_thirty_rolling_reloads_of_four_engines(tmp_path: Path) -> None:
    running = Running(tmp_path, ENGINE, "engine.replicas=4", "source.settle=0")
    running.patience = 600.0
    running.drop(1)
    reloads: list[tuple[float, float]] = []
    async with running.serving():
        await all_serve(running, 4)
        async with Tokens(running, (20,), clients=8).on() as load:
            await asyncio.sleep(2 * REST)  # the first batches of each size compile
            began = time.monotonic()
            for number in range(2, 2 + RELOADS):
                if number % 3 == 2:
                    await asyncio.sleep(REST)
                dropped = time.monotonic()
                attempt = await running.attempted(running.drop(number))
                assert (attempt.outcome, attempt.pause_seconds) == (Outcome.LIVE, 0.0), attempt
                reloads.append((dropped, time.monotonic()))
    first: dict[bool, list[float]] = {False: [], True: []}
    for asked, came in zip(load.asked, load.came, strict=True):
        if asked >= began and came:
            is_near = any(start <= asked <= end for start, end in reloads)
            first[is_near].append(came[0] - asked)
    p99 = {is_near: percentile(values, 0.99) for is_near, values in first.items()}
    for is_near, values in first.items():
        words = "while a reload is under way" if is_near else "else"
        print(
            f"\nfirst token {words:28} p50 {percentile(values, 0.5) * 1e3:7.1f} ms   "
            f"p99 {p99[is_near] * 1e3:7.1f} ms   ({len(values)})",
            end="",
        )
    took = [end - start for start, end in reloads]
    print(f"\np99 ratio {p99[True] / p99[False]:.2f}; a reload of four {median(took):.2f} s")


@pytest.mark.parametrize("replicas", [1, 2, 4])
async def test_what_more_engines_give_and_cost(tmp_path: Path, replicas: int) -> None:
    running = Running(tmp_path, ENGINE, f"engine.replicas={replicas}", "source.settle=0")
    running.patience = 600.0
    running.drop(1)
    before = await device_bytes()
    async with running.serving():
        await all_serve(running, replicas)
        device = await device_bytes() - before
        async with Tokens(running, (60,), clients=16).on() as load:
            await asyncio.sleep(10)  # the first batches of each size compile
            began, had = time.monotonic(), sum(len(times) for times in load.came)
            await asyncio.sleep(10)
            made = sum(len(times) for times in load.came) - had
            rate = made / (time.monotonic() - began)
        took = []
        for number in range(2, 7):
            dropped = time.monotonic()
            attempt = await running.attempted(running.drop(number))
            assert attempt.outcome is Outcome.LIVE, attempt
            took.append(time.monotonic() - dropped)
    print(
        f"\n{replicas} engines: {rate:6.0f} tokens/s, {device / 1e6:6.1f} MB on devices, "
        f"resident {resident() / 1e9:.2f} GB, a reload {median(took):.2f} s"
    )
