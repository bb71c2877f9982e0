"""What a swap costs those who are served, by overlap and by draining, side by side."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.upstream.thread import scheduler
from hotreload.types import Outcome
from tests.bench.figures import median
from tests.engine.real import Folders, engine_of
from tests.integration.running import Running

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(1800)]

ENGINE = (
    "engine.args={max_total_tokens=32768,context_length=4096,max_running_requests=8,"
    "chunked_prefill_size=128}"
)
NEAR = 2.0
"""Seconds after a swap in which its cost is looked for."""


@dataclass
class Tokens:
    """Clients that stream, and when each of their tokens came."""

    running: Running
    lengths: tuple[int, ...]
    clients: int = 8
    asked: list[float] = field(default_factory=list)
    came: list[list[float]] = field(default_factory=list)

    @asynccontextmanager
    async def on(self) -> AsyncIterator["Tokens"]:
        enough = asyncio.Event()
        tasks = [asyncio.create_task(self._client(n, enough)) for n in range(self.clients)]
        try:
            yield self
        finally:
            enough.set()
            await asyncio.gather(*tasks)

    async def _client(self, number: int, enough: asyncio.Event) -> None:
        lengths = random.Random(number)
        async with self.running.client() as client:
            while not enough.is_set():
                sampling = {"max_new_tokens": lengths.choice(self.lengths), "ignore_eos": True}
                body = {"text": "hello", "sampling_params": sampling, "stream": True}
                self.asked.append(time.monotonic())
                times: list[float] = []
                self.came.append(times)
                async with client.stream("POST", "/generate", json=body) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data: {"):
                            assert "meta_info" in json.loads(line.removeprefix("data: "))
                            times.append(time.monotonic())

    def first(self, near: list[float], *, is_near: bool) -> list[float]:
        """How long each first token took, of those who asked near a swap, or not."""
        pairs = zip(self.asked, self.came, strict=True)
        return [t[0] - at for at, t in pairs if t and close(at, near) is is_near]

    def between(self, near: list[float], *, is_near: bool) -> list[float]:
        """How long after the token before each other token came, near a swap, or not."""
        return [
            later - before
            for times in self.came
            for before, later in itertools.pairwise(times)
            if close(later, near) is is_near
        ]


def close(at: float, swaps: list[float]) -> bool:
    return any(0 <= at - swap < NEAR for swap in swaps)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


@pytest.mark.parametrize("mode", ["overlap", "drain"])
async def test_tokens_near_a_swap(tmp_path: Path, mode: str) -> None:
    running = Running(tmp_path, ENGINE, "source.settle=0", f"reload.mode={mode}")
    running.patience = 300.0
    running.drop(1)
    swaps, pauses = [], []
    async with running.serving():
        async with Tokens(running, (20, 60, 120)).on() as load:
            for number in range(2, 14):
                await asyncio.sleep(5)
                dropped = time.monotonic()
                attempt = await running.attempted(running.drop(number))
                assert attempt.outcome is Outcome.LIVE, attempt
                if number > 3:  # the first ones compile
                    swaps.append(dropped if mode == "drain" else time.monotonic())
                    pauses.append(attempt.pause_seconds)
        inside = running.engine.switch.last_exchange_seconds
    for name, look in (("first token", load.first), ("between tokens", load.between)):
        for is_near, when in ((False, "else"), (True, "near a swap")):
            values = look(swaps, is_near=is_near)
            print(
                f"\n{mode:8} {name:15} {when:12} p50 {percentile(values, 0.5) * 1e3:7.1f} ms   "
                f"p99 {percentile(values, 0.99) * 1e3:7.1f} ms   ({len(values)})",
                end="",
            )
    print(f"\n{mode:8} arrivals held: {figures(pauses)}; on the scheduler thread: {inside}")
    if mode == "overlap":
        assert pauses == [0.0] * len(pauses)
        assert inside is not None
        assert inside < 0.001


async def test_how_soon_new_weights_answer_does_not_depend_on_how_long_answers_are(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, ENGINE, "source.settle=0", "reload.finish_timeout=600")
    running.patience = 300.0
    running.drop(1)
    took: dict[int, list[float]] = {1: [], 60: []}
    async with running.serving():
        rate = await tokens_a_second(running)
        number = iter(range(2, 100))
        for seconds in (1, 60) * 3:
            length = min(3900, max(5, int(seconds * rate)))
            async with Tokens(running, (length,), clients=4).on():
                await asyncio.sleep(2)
                dropped = time.monotonic()
                attempt = await running.attempted(running.drop(next(number)))
                took[seconds].append(time.monotonic() - dropped)
                assert (attempt.outcome, attempt.pause_seconds) == (Outcome.LIVE, 0.0)
            await running.until(lambda: len(running.daemon.entrance.list_answering()) == 1)
    print(f"\n{rate:.0f} tokens a second for each of 4 clients")
    for seconds, values in took.items():
        print(f"answers of {seconds:2} s: live {figures(values)} after the checkpoint was there")


@pytest.mark.parametrize("sets", [2, 3, "auto"])
async def test_checkpoints_that_come_faster_than_answers_end(
    tmp_path: Path, sets: int | str
) -> None:
    settings = ("source.settle=0", "reload.finish_timeout=600", f"reload.sets={sets}")
    running = Running(tmp_path, ENGINE, *settings)
    running.patience = 300.0
    running.drop(1)
    async with running.serving():
        rate = await tokens_a_second(running)
        async with Tokens(running, (int(20 * rate),), clients=4).on():
            began = time.monotonic()
            for number in range(2, 16):
                await asyncio.sleep(3)
                running.drop(number)
            await running.attempted(running.checkpoints / "step_15")
            lasted = time.monotonic() - began
    live = len(running.generations) - 1
    print(f"\n{sets} sets, answers of 20 s, a checkpoint every 3 s, 14 in all:", end=" ")
    print(f"{live} went live, the last one after {lasted:.0f} s")


async def tokens_a_second(running: Running) -> float:
    """How many tokens each of four clients gets in a second."""
    async with Tokens(running, (200,), clients=4).on() as load:
        await asyncio.sleep(8)
    gaps = load.between([], is_near=False)
    return 1 / (sum(gaps) / len(gaps))


async def test_what_lanes_cost_while_there_is_one(tmp_path: Path) -> None:
    """By the clock, and by what the processor did: that hangs less on what else runs."""
    folders = Folders(tmp_path)
    clock: dict[str, list[float]] = {"with lanes": [], "without": []}
    processor: dict[str, list[float]] = {"with lanes": [], "without": []}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("with lanes", "without") * 6:
            why = None if name == "with lanes" else "the bench wants none"
            patch.setattr(scheduler, "why_no_lanes", lambda _, why=why: why)
            async with engine_of(folders.folder(1), tmp_path / "spool") as engine:
                await answered(engine, 30)
                by_clock, by_processor = await answered(engine, 300)
                clock[name].append(by_clock)
                processor[name].append(by_processor)
    for rates, unit in ((clock, "tokens/s"), (processor, "tokens a second of the processor")):
        ratio = [a / b for a, b in zip(rates["with lanes"], rates["without"], strict=True)]
        for name, values in rates.items():
            print(f"\n{name:11} {figures(values, unit)}", end="")
        print(f"\nwith / without: {figures(ratio, '')}", end="")


async def answered(engine: Any, tokens: int, clients: int = 8) -> tuple[float, float]:
    """Tokens a second in all, by the clock and by the processor, for clients that ask at once."""

    async def ask(number: int) -> None:
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        request = {"text": f"hello {number}", "sampling_params": sampling, "stream": True}
        async with aclosing(engine.answers.generate(request)) as answers:
            async for _ in answers:
                pass

    began, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*(ask(number) for number in range(clients)))
    took, work = time.perf_counter() - began, time.process_time() - worked
    return clients * tokens / took, clients * tokens / work


def figures(values: list[float], unit: str = "s") -> str:
    """The median and the ends, in words."""
    return f"{median(values):.4g} {unit} ({min(values):.4g}-{max(values):.4g}, n={len(values)})"
