"""What those who are answered notice of a reload: time between tokens, time without an answer."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.answering.probe import Probe
from hotreload.features.compare.evidence import LiveCompared
from hotreload.quiet import Quiet
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint
from tests.bench import plots
from tests.bench.checkpoints import HALF_A_GB, Shape, by_upstream, model
from tests.bench.figures import median, p99
from tests.bench.test_staging import BARE, BY_OURS, COPIED, bare
from tests.engine import real
from tests.integration.running import Running
from tests.integration.test_load import is_warm

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

NUMBERS = itertools.count(1)
NOTHING, ROUNDS = "nothing", 3
STAGED = {"the engine that stages": Shape(6), "a small one beside it": HALF_A_GB}
"""By whose client looks on: 0.2 GB take half a second a token here, 0.6 GB more than one."""
PAUSED = "reload inside the pause"


@asynccontextmanager
async def client(
    engine: Any, tokens: int = 400, gaps: list[float] | None = None
) -> AsyncIterator[list[float]]:
    """One who streams answers of so many tokens, and when each token came.

    `gaps` gets the times between two tokens of an answer.
    """
    came: list[float] = []

    async def stream() -> None:
        while True:
            sampling = {"max_new_tokens": tokens, "ignore_eos": True}
            request = {"text": "hello", "sampling_params": sampling, "stream": True}
            before = 0.0
            async with aclosing(engine.answers.generate(request)) as answers:
                async for _ in answers:
                    came.append(time.perf_counter())
                    if before and gaps is not None:
                        gaps.append(came[-1] - before)
                    before = came[-1]

    task = asyncio.create_task(stream())
    while len(came) < 20:  # noqa: ASYNC110 (a benchmark's start)
        await asyncio.sleep(0.1)
    try:
        yield came
    finally:
        task.cancel()
        await asyncio.wait({task})


async def stage(engine: Any, way: str, checkpoint: Checkpoint) -> None:
    if way == NOTHING:
        await asyncio.sleep(5)
    elif way == BARE:
        await bare(engine, checkpoint.path)
    elif way == BY_OURS:
        await engine.weights.release(await engine.weights.stage(checkpoint))
    else:
        with by_upstream():
            await engine.weights.release(await engine.weights.stage(checkpoint))


@pytest.mark.parametrize("which", STAGED)
async def test_time_between_tokens_while_staging(tmp_path: Path, which: str) -> None:
    quiet, shape = Quiet(), STAGED[which]
    gaps: dict[str, list[float]] = {NOTHING: [], BY_OURS: [], COPIED: [], BARE: []}
    async with AsyncExitStack() as engines:
        live = model(tmp_path / "live", shape)
        engine = await engines.enter_async_context(
            real.engine_of(live, tmp_path / "spool", quiet=quiet)
        )
        answering = engine
        if which == "a small one beside it":
            small = write_tiny(tmp_path / "small", "served by step 7")
            answering = await engines.enter_async_context(
                real.engine_of(small, tmp_path / "small_spool", quiet=quiet)
            )
        checkpoint = real.checked(model(tmp_path / "new", shape, 1))
        async with client(answering) as came:
            for at in range(ROUNDS + 1):
                for way, values in gaps.items():
                    before = len(came)
                    await stage(engine, way, checkpoint)
                    if at:  # the first compiles
                        values += [b - a for a, b in itertools.pairwise(came[before:])]
    print(f"\n{checkpoint.bytes / 1e9:.1f} GB are staged; a client of {which} sees")
    for way, values in gaps.items():
        times = p99(values) / p99(gaps[NOTHING])
        print(f"beside {way:32} p50 {median(values) * 1e3:6.1f} ms", end="")
        print(f"   p99 {p99(values) * 1e3:7.1f} ms   {times:5.2f} times idle ({len(values)})")
    plots.bars(
        f"tokens-{'small' if 'small' in which else 'same'}",
        f"p99 between tokens while {checkpoint.bytes / 1e9:.1f} GB are staged: {which}",
        {way: p99(values) * 1e3 for way, values in gaps.items()},
        "ms",
    )


PROVEN: dict[str, tuple[Shape | None, int]] = {
    "a tiny model": (None, 10),
    "two layers of 31 MB": (Shape(2), 1),
}
"""What is proven, and how often in a row: a tiny one says a few words."""
SHARES = (1.0, 0.25, 0.05)
"""At 1 the probe has every second step."""


@pytest.mark.parametrize("which", PROVEN)
async def test_time_between_tokens_while_proving(tmp_path: Path, which: str) -> None:
    """Four probes in a batch, by shares that take turns in one engine, beside one client."""
    (shape, times), saying = PROVEN[which], "served by step 7"
    probes = [Probe(f"{number} quick brown foxes", 24) for number in range(4)]
    gaps: dict[float, list[float]] = {share: [] for share in (0.0, *SHARES)}
    took: dict[float, list[float]] = {share: [] for share in SHARES}
    live = model(tmp_path / "live", shape) if shape else write_tiny(tmp_path / "live", saying)
    started = real.engine_of(live, tmp_path / "spool", quiet=Quiet(), probes=probes)
    async with started as engine, client(engine) as came:
        staged = await engine.weights.stage(real.checked(live))
        await engine.unseen.prove(staged)  # compiles
        for _ in range(ROUNDS):
            for share, values in gaps.items():
                before, began = len(came), time.perf_counter()
                await proven(engine, staged, share, times)
                values += [b - a for a, b in itertools.pairwise(came[before:])]
                if share:
                    took[share].append((time.perf_counter() - began) / times)
    idle = gaps.pop(0.0)
    print(f"\nbetween two tokens of {which}, idle: {figures_of(idle, idle)}")
    for share, values in gaps.items():
        print(f"while proving, share {share:4}: {figures_of(values, idle)}", end="")
        print(f"   a probe {median(took[share]):5.2f} s")
    means = {f"share {share}": mean(values) / mean(idle) for share, values in gaps.items()}
    name = f"Mean time between tokens while proving, times idle: {which}"
    plots.bars(f"proving-{'tiny' if shape is None else 'large'}", name, means, "times")


async def proven(engine: Any, staged: Any, share: float, times: int) -> None:
    """Prove with this share of the turns; for 0 nothing is done for a while."""
    if share:
        engine._scheduler.lanes._resting._shadow = Fraction(share).limit_denominator(100)
        for _ in range(times):
            await engine.unseen.prove(staged)
    else:
        await asyncio.sleep(5)


def figures_of(values: list[float], idle: list[float]) -> str:
    """The mean, the median and the tail, each beside that of nothing."""
    p90, longest = partial(p, part=0.9), partial(p, part=1.0)
    named = (("mean", mean), ("p50", median), ("p90", p90), ("p99", p99), ("longest", longest))
    told = (
        f"{name} {of(values) * 1e3:7.1f} ms {of(values) / of(idle):5.2f}x" for name, of in named
    )
    return f"{'   '.join(told)} ({len(values)})"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def p(values: list[float], part: float) -> float:
    return sorted(values)[round(part * (len(values) - 1))]


DEFAULTS = {"max_total_tokens": 16384, "context_length": 4096, "max_running_requests": 32}
"""A CPU's, for a model of this length."""
ASKED = {"a tiny model": (None, (20, 200), ROUNDS), "0.2 GB": (Shape(6), (20,), 1)}
"""Tokens of prompts, and how often they are asked."""


@pytest.mark.parametrize("which", ASKED)
async def test_how_long_a_prompt_holds_up_another_client(tmp_path: Path, which: str) -> None:
    """Before sizes with fewer places are compiled, and after, in one engine."""
    shape, asked, times = ASKED[which]
    live = model(tmp_path / "live", shape) if shape else write_tiny(tmp_path / "live")
    started = real.engine_of(live, tmp_path / "spool", quiet=Quiet(), args=DEFAULTS)
    async with started as engine:
        sizes = engine.ahead.sizes_to_compile(32, 4096)
        largest = max(size.cached for size in sizes)
        prompts = [size for size in sizes if size.is_prompt and not size.is_shadow]
        few = [size for size in prompts if size.cached < largest]
        for name, some in (("the largest", [e for e in sizes if e not in few]), ("fewer", few)):
            began = time.process_time()
            for size in some:
                await engine.ahead.compile_for(size)
            took = time.process_time() - began
            print(f"\n{which}, {name}: {len(some)} sizes compiled in {took:.1f} processor seconds")
            for tokens in asked:
                print(await prompts_beside_a_client(engine, tokens, times))


async def prompts_beside_a_client(engine: Any, tokens: int, times: int) -> str:
    """Time of a prompt of so many tokens, alone and beside a client, over a step's."""
    before, alone, gaps = engine.recompiles, list[float](), list[float]()
    for _ in range(times):
        alone.append(await prompt(engine, tokens))
    async with client(engine) as came:
        for _ in range(times):
            await asyncio.sleep(0.5)
            seen = len(came)
            await prompt(engine, tokens)
            answered = len(came)
            while len(came) < answered + 2:  # noqa: ASYNC110 (the token that waited for it)
                await asyncio.sleep(0.1)
            gaps.append(max(b - a for a, b in itertools.pairwise(came[seen - 1 :])))
        step = median([b - a for a, b in itertools.pairwise(came)])
    told = f"prompt {median(alone) * 1e3:7.1f} ms {median(alone) / step:5.1f}x"
    told += f"   longest gap {max(gaps) * 1e3:7.1f} ms {max(gaps) / step:5.1f}x"
    return f"{tokens:5} tokens, step {step * 1e3:6.1f} ms: {told}, {engine.recompiles - before} new"


async def prompt(engine: Any, tokens: int) -> float:
    """Time until the first token of a prompt of which nothing is cached."""
    ids = [next(NUMBERS) % 200 + 1 for _ in range(2)] + [7] * (tokens - 2)
    began = time.perf_counter()
    request = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    async with aclosing(engine.answers.generate(request)) as answers:
        async for _ in answers:
            pass
    return time.perf_counter() - began


RELOADED = {"a tiny model": (None, 200, 6), "0.2 GB": (Shape(6), 20, 2)}
"""Tokens of the client's answers, and reloads: a long answer keeps the next one waiting."""


@pytest.mark.parametrize("which", RELOADED)
async def test_the_longest_time_between_two_tokens_in_a_reload(tmp_path: Path, which: str) -> None:
    """Of a daemon that compares what is live, too, beside one client and nothing else."""
    shape, tokens, reloads = RELOADED[which]
    contents = [tmp_path / f"content_{number}" for number in range(reloads + 1)]
    for seed, folder in enumerate(contents):
        model(folder, shape, seed) if shape else write_tiny(folder, f"served by step {seed}")
    running = Running(
        tmp_path,
        f"engine.model={contents[0]}",
        "engine.args={max_total_tokens=8192,context_length=2048,max_running_requests=8}",
        "engine.staging_priority=idle",
        "engine.warm_batches=8",
        "compare.report=true",
        "probe=[{prompt='The', max_new_tokens=4}]",
    )
    running.patience = 600
    running.checkpoints.mkdir()
    async with running.serving():
        await running.until(lambda: any(map(is_warm, running.happened)))
        gaps = list[float]()
        async with client(running.engine, tokens, gaps):
            await asyncio.sleep(5)
            step = median(gaps)
            print(f"\n{which}, beside nothing: {longest(gaps, step)}", flush=True)
            for number, folder in enumerate(contents[1:], 1):
                gaps.clear()
                folder.rename(running.checkpoints / f"step_{number}")
                await running.until(lambda: compared(running) == number)  # noqa: B023
                print(f"{which}, reload {number}: {longest(gaps, step)}", flush=True)


def compared(running: Running) -> int:
    return sum(isinstance(event, LiveCompared) for event in running.happened)


def longest(gaps: list[float], step: float) -> str:
    """The longest of these times between two tokens, in steps, and one in a hundred."""
    told = f"longest {max(gaps) * 1e3:6.1f} ms {max(gaps) / step:4.1f} steps"
    told += f", p99 {p99(gaps) * 1e3:6.1f} ms {p99(gaps) / step:4.1f} steps"
    return f"{told} (of {step * 1e3:.1f} ms; {len(gaps)} tokens)"


async def test_how_long_nobody_is_answered(tmp_path: Path) -> None:
    """Ours, while a client streams; and what a reload inside the pause makes them wait."""
    waits: dict[str, list[float]] = {BY_OURS: [], PAUSED: []}
    live = model(tmp_path / "live", Shape(6))
    async with real.engine_of(live, tmp_path / "spool", quiet=Quiet()) as engine:
        checkpoint = real.checked(model(tmp_path / "new", Shape(6), 1))
        for _ in range(ROUNDS):
            async with client(engine) as came:
                before, first = len(came), engine.weights.live
                staged = await engine.weights.stage(checkpoint)
                await engine.switch.flip(staged)
                waits[BY_OURS].append(max(b - a for a, b in itertools.pairwise(came[before:])))
            await engine.switch.flip(first)
            await engine.switch.retire(staged)
            await engine.weights.release(staged)
            waits[PAUSED].append(await paused(engine, checkpoint))
    print("\nhow long nobody is answered while 0.2 GB take over")
    for way, values in waits.items():
        print(f"{way:32} {median(values):6.2f} s ({min(values):.2f}-{max(values):.2f})")
    medians = {way: median(values) for way, values in waits.items()}
    plots.bars("nobody-is-answered", "Longest time without a token in a reload", medians, "s")


async def paused(engine: Any, checkpoint: Checkpoint) -> float:
    """From the last token before to the first one after, all loaded by upstream's in between."""
    began = time.perf_counter()
    await bare(engine, checkpoint.path)
    await real.ask(engine, max_new_tokens=1)
    return time.perf_counter() - began
