"""What it costs to be served by us instead of by upstream's own server of the same engine.

All run at once, ours by each number of workers, and all but one are stopped while that one is
measured by upstream's benchmark. So each figure stands beside one that was taken a moment before or
after it.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from hotreload.engine.versions import installed_version
from tests.bench.bare_engine import ONE_DEVICE
from tests.bench.figures import median, noise
from tests.bench.test_front import has_its_workers
from tests.integration.openai_clients import free_address
from tests.integration.process import START_SECONDS, Process
from tests.integration.upstreams_benchmark import benchmarked
from tests.waiting import look_until

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

PAIRS = int(os.environ.get("HOTRELOAD_BENCH_PAIRS", "4"))
WORKERS = [int(each) for each in os.environ.get("HOTRELOAD_BENCH_WORKERS", "0,1").split(",")]
TOKENS = 32
CHECKPOINT_EVERY = 10.0
SHORTEST = 128 if installed_version("sglang-jax") == "0.0.2" else 64
"""Tokens of a context: 0.0.2's benchmark sends prompts of up to 50 tokens where 8 are asked."""
SHAPES = {
    "slow steps": {"max_total_tokens": 32768, "context_length": 4096, "max_running_requests": 32},
    "quick steps": {
        "max_total_tokens": 4096,
        "context_length": SHORTEST,
        "max_running_requests": 128,
    },
    "steps of 10 ms": {
        "max_total_tokens": 25 * SHORTEST,
        "context_length": SHORTEST,
        "max_running_requests": 32,
    },
}
FEWEST_TOKENS = {"slow steps": (1.0,), "quick steps": (1.0,), "steps of 10 ms": (1.0, 0.25)}
"""Of answers, as shares of the most: who all end together all ask again together."""
CLIENTS = {"slow steps": (8, 32, 128), "quick steps": (8, 32, 128), "steps of 10 ms": (32,)}
FEWEST_PROMPTS = {"slow steps": 24, "quick steps": 96, "steps of 10 ms": 300}
ROUNDS_OF_PROMPTS = {"slow steps": 1, "quick steps": 3, "steps of 10 ms": 3}
"""How often each client asks at least; a step of the slow kind takes a tenth of a second."""


class Measured(NamedTuple):
    """One run of the benchmark."""

    tokens: float
    first_p50: float
    first_p99: float
    cpu: float


@dataclass
class Server:
    """A program that serves: its address, and the processes that are it."""

    url: str
    pid: int

    def send(self, number: int) -> None:
        for each in self.processes():
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def processes(self) -> Iterator[int]:
        """Itself, and all that it began."""
        yield self.pid
        todo = [self.pid]
        while todo:
            for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
                found = [int(word) for word in task.read_text().split()]
                todo += found
                yield from found

    def cpu_seconds(self) -> float:
        return sum(map(_cpu_seconds, self.processes())) / os.sysconf("SC_CLK_TCK")


def _cpu_seconds(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def ours(folder: Path, shape: dict[str, int], workers: int) -> Iterator[tuple[Server, Process]]:
    folder.mkdir()
    args = ",".join(f"{name}={value}" for name, value in shape.items())
    address = free_address()
    process = Process(
        folder,
        f"engine.args={{{args}}}",
        f"server.tcp={address}",
        f"server.workers={workers}",
        "server.model_name=tiny",
    )
    process.drop(1)
    with process.running():
        process.until(partial(has_its_workers, process))
        yield Server(f"http://{address}", process.child.pid), process


@contextmanager
def upstreams(folder: Path, shape: dict[str, int], live: Path) -> Iterator[Server]:
    (folder / "tiny").symlink_to(live)
    address = free_address()
    host, port = address.split(":")
    wanted = {"model-path": folder / "tiny", "served-model-name": "tiny", "device": "cpu"}
    wanted |= {"host": host, "port": port, "log-level": "error"}
    wanted |= {name.replace("_", "-"): value for name, value in shape.items()}
    words = [word for name, value in wanted.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.bench.upstreams_server", *words]
    env = {**os.environ, "FLAX_ALWAYS_SHARD_VARIABLE": "false"}  # as 0.0.2 needs it by now
    log = (folder / "upstream.log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=env) as child:
        server = Server(f"http://{address}", child.pid)
        try:

            def is_well() -> bool:
                assert child.poll() is None, _end_of(log.name)
                return _is_well(server)

            look_until(is_well, lambda: _end_of(log.name), seconds=START_SECONDS)
            yield server
        finally:
            server.send(signal.SIGKILL)


def _is_well(server: Server) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{server.url}/health_generate", timeout=20).status_code == 200
    return False


def _end_of(log: str) -> str:
    return Path(log).read_text()[-3000:]


@dataclass(frozen=True)
class Asked:
    """What the benchmark's clients ask for."""

    shape: str
    clients: int
    fewest: float

    def __str__(self) -> str:
        fewest = round(TOKENS * self.fewest)
        tokens = f"{fewest} to {TOKENS}" if fewest < TOKENS else str(TOKENS)
        return f"{self.shape}, {self.clients} clients, answers of {tokens} tokens"


async def measured(folder: Path, server: Server, asked: Asked) -> Measured:
    before = server.cpu_seconds()
    told = await benchmarked(
        folder,
        server.url,
        "sgl-jax",
        dataset_name="random-ids",
        random_input_len=8,
        random_output_len=TOKENS,
        random_range_ratio=asked.fewest,
        num_prompts=max(
            FEWEST_PROMPTS[asked.shape], ROUNDS_OF_PROMPTS[asked.shape] * asked.clients
        ),
        max_concurrency=asked.clients,
        seed=asked.clients,
    )
    assert set(told["errors"]) == {""}
    cpu = (server.cpu_seconds() - before) / sum(told["output_lens"])
    return Measured(
        told["output_throughput"], told["median_ttft_ms"], told["p99_ttft_ms"], cpu * 1e3
    )


@asynccontextmanager
async def checkpoints(process: Process, numbers: Iterator[int]) -> AsyncIterator[None]:
    """One every ten seconds, the first at once."""

    async def drop() -> None:
        while True:
            process.drop(next(numbers))
            await asyncio.sleep(CHECKPOINT_EVERY)

    dropping = asyncio.create_task(drop())
    try:
        yield
    finally:
        dropping.cancel()


@pytest.mark.parametrize("shape", SHAPES)
async def test_served_by_us_or_by_upstreams_own_server(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
    with ExitStack() as running:
        own = {
            f"{workers} workers": running.enter_context(
                ours(tmp_path / f"ours_{workers}", SHAPES[shape], workers)
            )
            for workers in WORKERS
        }
        _, first = next(iter(own.values()))
        other = running.enter_context(
            upstreams(tmp_path, SHAPES[shape], first.checkpoints / "step_1")
        )
        numbers = itertools.count(2)
        for clients, fewest in itertools.product(CLIENTS[shape], FEWEST_TOKENS[shape]):
            asked = Asked(shape, clients, fewest)
            rows = await compared(tmp_path, other, own, asked, numbers)
            told({name: row[1:] for name, row in rows.items()}, str(asked))


async def compared(
    folder: Path,
    other: Server,
    own: dict[str, tuple[Server, Process]],
    asked: Asked,
    numbers: Iterator[int],
) -> dict[str, list[Measured]]:
    """Each in turn, the others stopped, after a round that does not count."""
    everybody = [other, *(server for server, _ in own.values())]
    rows: dict[str, list[Measured]] = defaultdict(list)
    for _ in range(PAIRS + 1):
        with alone(other, everybody):
            rows["upstream"].append(await measured(folder, other, asked))
        for name, (server, process) in own.items():
            with alone(server, everybody):
                rows[name].append(await measured(folder, server, asked))
                async with checkpoints(process, numbers):
                    with_checkpoints = await measured(folder, server, asked)
                rows[f"{name}, checkpoints"].append(with_checkpoints)
    return rows


@contextmanager
def alone(server: Server, everybody: list[Server]) -> Iterator[None]:
    """Have all others stopped meanwhile."""
    others = [each for each in everybody if each is not server]
    for each in others:
        each.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in others:
            each.send(signal.SIGCONT)


def told(rows: dict[str, list[Measured]], title: str) -> None:
    """Print the medians, and beside them the median of the ratios to upstream's of each round."""
    print(f"\n{title} (medians of {PAIRS}; beside them times upstream's, and its noise)")
    for index, name in enumerate(("tokens/s", "first p50 ms", "first p99 ms", "CPU ms a token")):
        for who, row in rows.items():
            values: list[Any] = [each[index] for each in row]
            pairs = zip(values, rows["upstream"], strict=True)
            ratios = [value / theirs[index] for value, theirs in pairs]
            spread = noise(ratios) if len(ratios) > 1 else 0.0
            line = f"{median(values):8.1f} {median(ratios):5.2f}x ±{spread:.2f}"
            print(f"  {name:<15}{who:<24}{line}")
