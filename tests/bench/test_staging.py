"""How long staging takes, by our own loader and by upstream's, and how that grows."""

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotreload.engine.weights.load.upstream_loader import load_shadow
from hotreload.engine.weights.memory.spare_processors import count_threads
from hotreload.engine.weights.staged_set import give_to_model
from hotreload.quiet import Quiet
from hotreload.types import Checkpoint, Staged
from tests.bench import plots
from tests.bench.checkpoints import (
    HALF_A_GB,
    TWO_GB,
    WEIGHTS,
    Shape,
    by_upstream,
    model,
)
from tests.bench.figures import median, noise
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("HOTRELOAD_BENCH_ROUNDS", "5"))
BY_OURS, COPIED, BARE = "our own loader", "upstream's, of a private copy", "upstream's, bare"
BY_SPARE = "our own, staging_threads = auto"
READ, PUT, TURNED = "reading alone", "placing alone, as in the file", "placing alone, turned"
FLIP, ROUND_TRIP = "the flip, on the scheduler thread", "the flip, until it is told"
IN_THE_FLIP = "the model's variables, were they set in the flip"
MOST_OF_A_FLIP = 0.0005

BY_LEAVES = [Shape(layers, 128, 128, 1, 1) for layers in (2, 27, 272)]
BY_SIZE = [Shape(2, 1024, between, 1, 1) for between in (64, 3_000, 30_000, 100_000)]


@asynccontextmanager
async def engine_of(root: Path, shape: Shape) -> AsyncIterator[Any]:
    folder = model(root / "live", shape)
    quiet = Quiet(priority="normal")
    async with real.engine_of(folder, root / "spool", quiet=quiet) as engine:
        assert engine.weights.loaders.why_upstream is None
        yield engine


async def timed[T](into: list[float], work: Callable[..., Awaitable[T]], *args: Any) -> T:
    began = time.perf_counter()
    result = await work(*args)
    into.append(time.perf_counter() - began)
    return result


async def counted_in[T](into: list[float], work: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Count the processor seconds of all threads: other work on the machine moves them least."""
    began = time.process_time()
    result = await work(*args)
    into.append(time.process_time() - began)
    return result


@contextmanager
def spare_threads(engine: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quiet = replace(engine.weights.loaders.quiet, threads=count_threads("auto", "idle"))
        patch.setattr(engine.weights.loaders, "quiet", quiet)
        yield


def least(engine: Any, checkpoint: Checkpoint, took: dict[str, list[float]]) -> None:
    """What nobody can go below with one thread: the bytes read, and each leaf placed."""
    import jax

    room = bytearray(max(held.end - held.begin for held in checkpoint.held.values()))
    seconds = dict.fromkeys((READ, PUT, TURNED), 0.0)
    with (checkpoint.path / WEIGHTS).open("rb", buffering=0) as file:
        for place in engine.weights.layout.places:
            part = engine.weights.plan.parts[engine.weights.layout.paths[place]][0]
            held, live = checkpoint.held[part.tensor], engine.weights.live.weights.leaves[place]
            began = time.perf_counter()
            os.preadv(file.fileno(), [memoryview(room)[: held.end - held.begin]], held.begin)
            seconds[READ] += time.perf_counter() - began
            # An odd place in memory: JAX would take any other over and copy nothing.
            tensor = np.empty(held.end - held.begin + 2, np.uint8)[2:].view(live.dtype)
            tensor[...] = 0
            tensor = tensor.reshape(part.rule.shape)
            for how, made in ((PUT, tensor), (TURNED, part.rule.apply(tensor))):
                began = time.perf_counter()
                jax.device_put(made, live.sharding).block_until_ready()
                seconds[how] += time.perf_counter() - began
    for how, value in seconds.items():
        took[how].append(value)


async def bare(engine: Any, folder: Path) -> None:
    """Upstream's loader alone: no copy, nothing measured or placed anew."""
    import jax
    from flax import nnx

    def load() -> None:
        jax.block_until_ready(nnx.state(load_shadow(engine.weights.loaders._runner, folder)))  # type: ignore[no-untyped-call]

    await asyncio.to_thread(load)


@pytest.mark.parametrize("shape", [HALF_A_GB, TWO_GB], ids=["0.6 GB", "2 GB"])
async def test_how_long_staging_takes(tmp_path: Path, shape: Shape) -> None:
    async with engine_of(tmp_path, shape) as engine:
        checkpoints = [real.checked(model(tmp_path / f"new_{n}", shape, n)) for n in (1, 2)]
        size = checkpoints[0].bytes / 1e9
        kinds = (BY_OURS, BY_SPARE, COPIED, BARE, READ, PUT, TURNED)
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        processors: dict[str, list[float]] = {kind: [] for kind in kinds}
        loading = []

        async def measured(kind: str, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
            return await timed(took[kind], counted_in, processors[kind], work, *args)

        await engine.weights.release(
            await engine.weights.stage(checkpoints[1])
        )  # what it leaves is used again
        for checkpoint in itertools.islice(itertools.cycle(checkpoints), ROUNDS):
            staged = await measured(BY_OURS, engine.weights.stage, checkpoint)
            loading.append(staged.loading)
            await engine.weights.release(staged)
            with spare_threads(engine):
                await engine.weights.release(
                    await measured(BY_SPARE, engine.weights.stage, checkpoint)
                )
            with by_upstream():
                await engine.weights.release(
                    await measured(COPIED, engine.weights.stage, checkpoint)
                )
            await measured(BARE, bare, engine, checkpoint.path)
            await asyncio.to_thread(least, engine, checkpoint, took)
    assert {each.loader for each in loading} == {"own"}
    print(f"\nstaging {size:.2f} GB in {loading[0].leaves_staged} leaves")
    limit = max(median(took[kind]) for kind in (READ, TURNED))
    for name, values in took.items():
        middle, spent = median(values), processors[name]
        print(f"{name:32} {middle:6.3f} s ({min(values):.3f}-{max(values):.3f})", end="")
        print(f" noise {noise(values):4.0%}   {size / middle:5.2f} GB/s", end="")
        print(f"   bare over this: median {median(took[BARE]) / middle:5.2f}", end="")
        print(f", least {min(took[BARE]) / min(values):5.2f}   limit {limit / middle:4.0%}", end="")
        print(f"   processor {median(spent):.2f} s, least {min(spent):.2f}" if spent else "")
    plots.bars(
        f"staging-{size:.1f}-gb",
        f"Staging {size:.2f} GB, median of {ROUNDS}",
        {name: median(values) for name, values in took.items()},
        "s",
    )


@pytest.mark.parametrize(("shapes", "what"), [(BY_LEAVES, "leaves"), (BY_SIZE, "MB")])
async def test_how_it_grows(tmp_path: Path, shapes: list[Shape], what: str) -> None:
    rows = {}
    for at, shape in enumerate(shapes):
        checkpoint, seconds = await grow(tmp_path / str(at), shape)
        measure = len(checkpoint.tensors) if what == "leaves" else checkpoint.bytes / 1e6
        rows[float(measure)] = seconds
    for measure, seconds in rows.items():
        print(f"\n{measure:.0f} {what}")
        for name, value in seconds.items():
            print(f"  {name:50} {value * 1e3:10.3f} ms")
    lines = {kind: [(at, row[kind]) for at, row in rows.items()] for kind in (BY_OURS, BARE, FLIP)}
    plots.lines(f"growth-{what.lower()}", f"The cost by {what}", what, "seconds", lines)
    assert all(seconds[FLIP] < MOST_OF_A_FLIP for seconds in rows.values())


async def grow(root: Path, shape: Shape) -> tuple[Checkpoint, dict[str, float]]:
    """What one size costs: staging by ours and by upstream's bare, and the flip."""
    kinds = (BY_OURS, BARE, FLIP, ROUND_TRIP, IN_THE_FLIP)
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with engine_of(root, shape) as engine:
        checkpoint = real.checked(model(root / "new", shape, 1))
        for _ in range(ROUNDS):
            staged = await timed(took[BY_OURS], engine.weights.stage, checkpoint)
            await flip_there_and_back(engine, staged, took)
            await engine.weights.release(staged)
            await timed(took[BARE], bare, engine, checkpoint.path)
    shutil.rmtree(root)
    return checkpoint, {name: median(values) for name, values in took.items()}


async def flip_there_and_back(engine: Any, staged: Staged, took: dict[str, list[float]]) -> None:
    first = engine.weights.live
    for target in (staged, first):
        before = await timed(took[ROUND_TRIP], engine.switch.flip, target)
        took[FLIP].append(engine.switch.last_exchange_seconds)
        took[IN_THE_FLIP].append(await engine.switch.between.at_a_turn(lambda: all_set(engine)))
        await engine.switch.retire(before)


def all_set(engine: Any) -> float:
    """Seconds that it takes to have the model's own variables hold what is live."""
    began = time.perf_counter()
    for _ in give_to_model(engine.weights.layout, engine.weights.live.weights.leaves):
        pass
    return time.perf_counter() - began
