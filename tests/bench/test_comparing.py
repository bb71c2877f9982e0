"""What comparing new weights with the live ones takes: time, and steps of the engine."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.quiet import Quiet
from hotreload.settings.tables import with_values
from hotreload.tiny import write_tiny
from hotreload.types import Phase, Staged
from tests.bench.figures import median
from tests.bench.test_unnoticed import client, figures_of
from tests.engine import real
from tests.integration.running import Load, Running

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

CLIENTS, ROUNDS, IDLE_SECONDS = 8, 5, 10.0
SHARES = (1.0, 0.25, 0.05)
SHADOW, SERVING = "shadow", "serving"


class Launches:
    """Batches that an engine launches from now on, counted by who they are for."""

    def __init__(self, engine: Any) -> None:
        self.counts: Counter[str] = Counter()
        scheduler, rotation = engine._scheduler.scheduler, engine._scheduler.lanes._rotation
        next_batch = scheduler.get_next_batch_to_run

        def counted() -> Any:
            batch = next_batch()
            if batch is not None:
                self.counts[SHADOW if rotation.current.has_own_pool else SERVING] += 1
            return batch

        scheduler.get_next_batch_to_run = counted


async def test_what_a_comparison_takes(tmp_path: Path) -> None:
    """Without anybody beside it, and beside clients who stream, by shares that take turns."""
    live, new = (write_tiny(tmp_path / f"{steps}", steps=steps) for steps in (36, 40))
    rows = {"max_running_requests": 32}  # fewer would part what is asked together
    started = real.engine_of(live, tmp_path / "spool", quiet=Quiet(), compares=True, args=rows)
    async with started as engine:
        staged = await engine.weights.stage(real.checked(new))
        await seconds_of(engine, staged)  # what is not compiled yet is now
        alone = [await seconds_of(engine, staged) for _ in range(ROUNDS)]
        print(f"\na comparison of tiny models, nobody beside it: {spread(alone)}")
        async with AsyncExitStack() as streams:
            came = [await streams.enter_async_context(client(engine)) for _ in range(CLIENTS)]
            await beside_clients(engine, staged, came)


async def beside_clients(engine: Any, staged: Staged, came: list[list[float]]) -> None:
    launches, tokens = Launches(engine), came[0]
    before, first = launches.counts.copy(), len(tokens)
    await asyncio.sleep(IDLE_SECONDS)
    idle, pace = gaps(tokens[first:]), (launches.counts - before)[SERVING] / IDLE_SECONDS
    print(f"{CLIENTS} clients, nothing beside: {pace:.0f} steps a second, {figures_of(idle, idle)}")
    for share in SHARES:
        engine._scheduler.lanes._resting._shadow = Fraction(share).limit_denominator(100)
        before, took, seen = launches.counts.copy(), list[float](), list[float]()
        for _ in range(ROUNDS):
            first = len(tokens)
            took.append(await seconds_of(engine, staged))
            seen += gaps(tokens[first:])
        steps = launches.counts - before
        own = steps[SHADOW] / ROUNDS
        print(f"shadow_share {share}: {spread(took)}, {own:.0f} steps of its own")
        print(f"  {steps[SHADOW] / steps.total():.1%} of the steps meanwhile", end=", ")
        print(f"{own / (60 * pace):.2%} of those of a minute; {figures_of(seen, idle)}")


async def seconds_of(engine: Any, staged: Staged) -> float:
    began = time.perf_counter()
    assert (
        await compare_both(BothWeights(engine, engine.weights.live, staged), KnownAnswers())
        is not None
    )
    return time.perf_counter() - began


def gaps(came: list[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(came)]


def spread(values: list[float]) -> str:
    return f"{median(values):.2f} s ({min(values):.2f}-{max(values):.2f})"


OFF = "[compare] report = false"
WAYS = {
    OFF: CompareSettings(report=False),
    "without limits": CompareSettings(),
    "with limits": CompareSettings(limits=CompareLimits(min_agreement=0.0)),
}
RELOADS = 7


@asynccontextmanager
async def streaming(running: Running) -> AsyncIterator[list[float]]:
    """A client that streams one answer after the other, and when each piece came."""
    came = list[float]()
    sampling = {"max_new_tokens": 24, "ignore_eos": True, "temperature": 0}
    body = {"text": "hello", "sampling_params": sampling, "stream": True}

    async def stream() -> None:
        async with running.client() as client:
            while True:
                async with client.stream("POST", "/generate", json=body) as answer:
                    async for line in answer.aiter_lines():
                        came.extend([time.perf_counter()] if line else [])

    task = asyncio.create_task(stream())
    try:
        yield came
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize("clients", [0, 4])
async def test_what_it_adds_to_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    """From the rename to the end of the attempt, in turns; each after one that was made alike."""
    running = Running(tmp_path, "compare.report=true", "reload.keep_previous=device")
    running.drop(1)
    took, waits = ({name: list[float]() for name in WAYS} for _ in "ab")
    probing = list[float]()
    async with running.serving(), AsyncExitStack() as stack:
        live_settings, numbers = running.daemon.live_settings, itertools.count(2)

        async def reload(way: CompareSettings) -> float:
            features = {"compare": way}
            monkeypatch.setattr(
                live_settings, "settings", with_values(live_settings.settings, features)
            )
            before = running.daemon.attempts.follow_ups._task
            folder, began = running.drop(next(numbers)), time.perf_counter()
            attempt = await running.attempted(folder)
            seconds = time.perf_counter() - began
            probing.append(attempt.phases[Phase.PROBING])
            if way.report:
                follow_ups = running.daemon.attempts.follow_ups
                await running.until(lambda: follow_ups._task is not before)
                assert follow_ups._task is not None
                await asyncio.wait([follow_ups._task])
            return seconds

        for way in WAYS.values():  # what is not compiled yet is now
            await reload(way)
        probing.clear()
        came = list[float]()
        if clients:
            await stack.enter_async_context(Load(running, clients).on())
            came = await stack.enter_async_context(streaming(running))
        for _ in range(RELOADS):
            for name, way in WAYS.items():
                await reload(way)
                first = len(came)
                took[name].append(await reload(way))
                waits[name] += gaps(came[first:])
    none, undecided, limited = (median(each) for each in took.values())
    print(f"\nfrom the rename to the end of the attempt, {clients} clients:")
    for name, each in took.items():
        seen = f"; a client's gaps: {figures_of(waits[name], waits[OFF])}" if clients else ""
        print(f"  {name:<26} {spread(each)}{seen}")
    more = (limited - none) / median(probing)
    print(f"  without limits {undecided / none:.2f} times as long as without a comparison")
    print(f"  with limits {more:.2f} times the probe ({median(probing):.2f} s) longer")
