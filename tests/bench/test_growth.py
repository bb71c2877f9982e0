"""How what a change of weights costs grows: by what changed, threads, generations, clients."""

import asyncio
import itertools
import time
from collections import defaultdict
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.quiet import Quiet
from hotreload.tiny import write_tiny
from tests.bench import plots
from tests.bench.checkpoints import HALF_A_GB, Shape, model, with_layers_changed
from tests.bench.figures import median, p99
from tests.bench.test_staging import FLIP, engine_of, flip_there_and_back, timed
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = 5
LITTLE, MOST_SETS, STAGED = Shape(6), 6, "staging"
LAYERS_CHANGED = (1, 5, 10, 20)
THREADS = (1, 2)
GENERATIONS, CLIENTS_OF_ALL = (1, 2, 3, 4, 6), 12
CLIENTS = (1, 4, 16)
SECONDS = 3.0
LONG = {"temperature": 0, "max_new_tokens": 900, "ignore_eos": True}
ROOM = {"max_total_tokens": 16384, "context_length": 1024, "chunked_prefill_size": 64}


async def test_growth_by_the_share_that_changed(tmp_path: Path) -> None:
    async with engine_of(tmp_path, HALF_A_GB) as engine:
        whole = model(tmp_path / "new", HALF_A_GB, 1)  # the embedding and the head, too
        made = {
            count: with_layers_changed(tmp_path / "live", tmp_path / f"{count}", range(count))
            for count in LAYERS_CHANGED
        }
        folders = {f"{count} layers of 20": folder for count, folder in made.items()}
        checkpoints = {name: real.checked(folder) for name, folder in folders.items()}
        checkpoints["all of it"] = real.checked(whole)
        took: dict[str, list[float]] = {name: [] for name in checkpoints}
        read: dict[str, int] = {}
        for _ in range(ROUNDS):
            for name, checkpoint in checkpoints.items():
                staged = await timed(took[name], engine.weights.stage, checkpoint)
                read[name] = staged.loading.bytes_read
                await engine.weights.release(staged)
    print("\nstaging, by what changed")
    for name, values in took.items():
        print(f"{name:16} {spread(values)}   {read[name] / 1e6:7.1f} MB read")
    points = [(read[name] / 1e6, median(values)) for name, values in took.items()]
    plots.lines("growth-changed", "Staging, by what changed", "MB changed", "s", {"": points})


async def test_growth_by_threads(tmp_path: Path) -> None:
    async with engine_of(tmp_path, HALF_A_GB) as engine:
        checkpoint = real.checked(model(tmp_path / "new", HALF_A_GB, 1))
        took: dict[int, list[float]] = {threads: [] for threads in THREADS}
        for _ in range(ROUNDS):
            for threads, values in took.items():
                engine.weights.loaders.quiet = replace(
                    engine.weights.loaders.quiet, threads=threads
                )
                await engine.weights.release(await timed(values, engine.weights.stage, checkpoint))
    print("\nstaging 0.64 GB, by threads")
    for threads, values in took.items():
        print(f"{threads:16} {spread(values)}")
    rows = {f"{threads} threads": median(values) for threads, values in took.items()}
    plots.bars("growth-threads", "Staging 0.64 GB, by threads", rows, "s")


async def test_growth_by_sets(tmp_path: Path) -> None:
    """One more set beside so many, none of which shares a leaf with another."""
    async with engine_of(tmp_path, LITTLE) as engine:
        made = [real.checked(model(tmp_path / f"{n}", LITTLE, n)) for n in range(1, MOST_SETS + 1)]
        kinds = {n: defaultdict[str, list[float]](list) for n in range(2, MOST_SETS + 1)}
        held: dict[int, float] = {}
        for _ in range(ROUNDS):
            beside = list[Any]()
            for count, took in kinds.items():
                staged = await timed(took[STAGED], engine.weights.stage, made[count - 1])
                held[count] = await real.device_bytes() / 1e6
                await flip_there_and_back(engine, staged, took)
                beside.append(staged)
            for each in beside:
                await engine.weights.release(each)
    print(f"\n{made[0].bytes / 1e6:.0f} MB more, by how many sets there are then")
    for count, took in kinds.items():
        flip = f"{median(took[FLIP]) * 1e3:.2f} ms"
        print(f"{count:4} staging {spread(took[STAGED])}   flip {flip}   {held[count]:.0f} MB")
    points = [(float(count), median(took[STAGED])) for count, took in kinds.items()]
    plots.lines("growth-sets", "Staging 0.2 GB, by sets with it", "sets", "s", {"": points})


class Long:
    """An answer that outlasts what is measured, and when its tokens came."""

    def __init__(self, engine: Any) -> None:
        self.came: list[float] = []
        self._engine = engine
        self._task = asyncio.create_task(self._stream())

    async def _stream(self) -> None:
        request = {"text": "x", "sampling_params": LONG, "stream": True}
        async with aclosing(self._engine.answers.generate(request)) as answers:
            async for _ in answers:
                self.came.append(time.perf_counter())

    async def begun(self) -> "Long":
        while len(self.came) < 2:  # noqa: ASYNC110 (a benchmark's start)
            await asyncio.sleep(0.01)
        return self

    def gaps(self, since: float) -> list[float]:
        assert not self._task.done(), "its answer ended meanwhile: ask for more tokens"
        later = [at for at in self.came if at >= since]
        return [b - a for a, b in itertools.pairwise(later)]

    async def leaves(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def test_growth_by_generations_that_answer(tmp_path: Path) -> None:
    """The same clients, all of one generation or spread over several."""
    folders = [write_tiny(tmp_path / f"{n}", f"served by step {n}") for n in range(GENERATIONS[-1])]
    rows = {"max_running_requests": 16}
    started = real.engine_of(folders[0], tmp_path / "spool", quiet=Quiet(), args={**ROOM, **rows})
    pace: dict[int, list[float]] = {count: [] for count in GENERATIONS}
    gaps: dict[int, list[float]] = {count: [] for count in GENERATIONS}
    held: dict[int, float] = {}
    async with started as engine:
        for at in range(ROUNDS + 1):
            for count in GENERATIONS:
                seen, size = await among(engine, folders[:count])
                held[count] = size / 1e6
                if at:  # the first compiles
                    pace[count].append(sum(map(len, seen)) / SECONDS)
                    gaps[count] += [each for client in seen for each in client]
    print(f"\n{CLIENTS_OF_ALL} clients, by how many generations answer them")
    for count in GENERATIONS:
        between = f"p50 {median(gaps[count]) * 1e3:.1f} ms, p99 {p99(gaps[count]) * 1e3:.1f} ms"
        least, most = min(pace[count]), max(pace[count])
        print(
            f"{count:4} {median(pace[count]):7.0f} tokens a second ({least:.0f}-{most:.0f})", end=""
        )
        print(f"   between tokens {between}   {held[count]:.0f} MB on the device")
    points = [(float(count), median(pace[count])) for count in GENERATIONS]
    name = f"Tokens a second of {CLIENTS_OF_ALL} clients, by generations that answer"
    plots.lines("growth-generations", name, "generations", "tokens a second", {"": points})


async def among(engine: Any, folders: list[Path]) -> tuple[list[list[float]], int]:
    """Time between tokens of each client, while each folder's weights answer as many of them."""
    clients, older = list[Long](), list[Any]()
    for at, folder in enumerate(folders):
        if at or engine.weights.live.revision.label != folder.name:
            older.append(await engine.switch.flip(await engine.weights.stage(real.checked(folder))))
        share = [Long(engine) for _ in range(CLIENTS_OF_ALL // len(folders))]
        clients += [await each.begun() for each in share]
    since = time.perf_counter()
    await asyncio.sleep(SECONDS)
    seen = [each.gaps(since) for each in clients]
    size = await real.device_bytes()
    for each in clients:
        await each.leaves()
    for each in older:
        await engine.switch.retire(each)
        await engine.weights.release(each)
    return seen, size


async def test_growth_by_clients(tmp_path: Path) -> None:
    """Beside each flip some wait for it: those who are answered hear nothing of it."""
    folders = [write_tiny(tmp_path / f"{n}", f"served by step {n}") for n in (1, 2)]
    rows = {"max_running_requests": CLIENTS[-1]}
    took: dict[int, list[float]] = {count: [] for count in CLIENTS}
    whole: dict[int, list[float]] = {count: [] for count in CLIENTS}
    started = real.engine_of(folders[0], tmp_path / "spool", quiet=Quiet(), args={**ROOM, **rows})
    async with started as engine:
        for count in CLIENTS:
            for at in range(ROUNDS + 1):
                clients = [Long(engine) for _ in range(count)]
                await asyncio.gather(*(each.begun() for each in clients))
                staged = await engine.weights.stage(real.checked(folders[(at + 1) % 2]))
                seconds = list[float]()
                before = await timed(seconds, engine.switch.flip, staged)
                if at:
                    took[count].append(engine.switch.last_exchange_seconds)
                    whole[count] += seconds
                for each in clients:
                    each.gaps(0)
                    await each.leaves()
                await engine.switch.retire(before)
                await engine.weights.release(before)
    print("\na flip, by how many are answered meanwhile")
    for count in CLIENTS:
        exchange = f"{median(took[count]) * 1e3:.2f} ms ({max(took[count]) * 1e3:.2f} at most)"
        print(f"{count:4} on the scheduler thread {exchange}   until told {spread(whole[count])}")
    series = {
        "on the scheduler thread": [(float(n), median(took[n])) for n in CLIENTS],
        "until it is told": [(float(n), median(whole[n])) for n in CLIENTS],
    }
    plots.lines("growth-clients", "A flip, by clients", "clients", "s", series)


def spread(values: list[float]) -> str:
    return f"{median(values):6.3f} s ({min(values):.3f}-{max(values):.3f})"
