"""What the front of the engine's process takes: HTTP, server-sent events, words, counts.

`make bench ARGS='-k front'` prints the tables: without workers, with one and with two. The
processor time is that of the engine's process alone, and that of its workers beside it.
HOTRELOAD_BENCH_BESIDE names other checkouts that have these files, as a PATH does: their daemons,
with as many workers, take turns with ours, so that each figure stands beside theirs of the same
minute.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.bench.bare_engine import ONE_DEVICE
from tests.bench.figures import median
from tests.children import cpu_seconds_of, workers_below
from tests.integration.process import Process
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("HOTRELOAD_BENCH_ROUNDS", "5"))
BESIDE = os.environ.get("HOTRELOAD_BENCH_BESIDE", "")
HERE = Path(__file__).parents[2]
STREAMS = (32, 128)
WORKERS = [int(each) for each in os.environ.get("HOTRELOAD_BENCH_WORKERS", "0,1,2").split(",")]
TOKENS = {"stand-in": 64, "real": 32}
TOKENS_A_ROUND = 16384
PROMPTS_A_ROUND = 1000
PROMPT, LONG_PROMPT = 10, 2000
KINDS = {
    "hotreload-sched": "scheduler",
    "forward_thread_": "forward",
    "tf_XLAEigen": "XLA's own",
}
"""Threads by their names, as the kernel keeps them; the first of a process runs the loop."""


@dataclass(frozen=True)
class Asking:
    """How often clients ask in a round, and for what."""

    route: str
    streams: int
    tokens: int
    prompt: int = PROMPT
    a_round: int = TOKENS_A_ROUND

    @property
    def answers(self) -> int:
        """To each stream."""
        return max(1, self.a_round // (self.streams * self.tokens))


@dataclass(frozen=True)
class Measured:
    """One round of one daemon."""

    tokens: float
    """Tokens a second."""
    first: float
    """Median of the seconds until the first token."""
    together: float
    """Share of the tokens that came in one event with the next one."""
    cpu: Mapping[str, float]
    """Seconds of processor time for 1,000 tokens, by kind of thread."""


def taken_by_workers(pid: int) -> float:
    """Seconds of processor time that the workers of a process have taken."""
    return sum(map(cpu_seconds_of, workers_below(pid)))


def taken_by_threads(pid: int) -> dict[str, float]:
    """Seconds of processor time that each kind of thread has taken."""
    taken: dict[str, float] = defaultdict(float)
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        kind = "loop" if task.name == str(pid) else KINDS.get(name, "others")
        taken[kind] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return taken


async def measured(process: Process, ask: Asking) -> Measured:
    """Have clients of another process ask for a round of answers."""
    before, in_all = taken_by_threads(process.child.pid), process.cpu_seconds()
    by_workers = taken_by_workers(process.child.pid)
    numbers = map(str, (ask.streams, ask.answers, ask.tokens, ask.prompt))
    arguments = (str(process.socket), ask.route, *numbers)
    asking = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.streams", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await asyncio.wait_for(asking.communicate(), PATIENCE)
    finally:
        if asking.returncode is None:
            asking.kill()
    assert asking.returncode == 0, process.log.read_text()[-3000:]
    in_all = process.cpu_seconds() - in_all  # threads that have ended are no longer listed
    told, made = json.loads(said), ask.streams * ask.answers * ask.tokens
    after = taken_by_threads(process.child.pid)
    cpu = {kind: (after[kind] - before.get(kind, 0.0)) / made * 1e3 for kind in after}
    of_workers = (taken_by_workers(process.child.pid) - by_workers) / made * 1e3
    return Measured(
        made / told["seconds"],
        median(told["first"]),
        1 - told["events"] / made,
        {**cpu, "all": in_all / made * 1e3, "workers": of_workers},
    )


@contextmanager
def daemons(folder: Path, command: str, *sets: str) -> Iterator[dict[str, Process]]:
    """Ours, and those of each other checkout, by the number of workers."""
    others = [Path(each) for each in BESIDE.split(":") if each]
    places = {f"workers-{count}": (HERE, count) for count in WORKERS}
    places |= {f"{place.name}-{count}": (place, count) for place in others for count in WORKERS}
    with ExitStack() as running:
        found = {}
        for name, (place, count) in places.items():
            (folder / name).mkdir()
            more = ("server.model_name=tiny", f"server.workers={count}")
            process = Process(folder / name, *sets, *more, command=command)
            process.drop(1)
            through = ("env", "-C", str(place), f"PYTHONPATH={place}")
            found[name] = running.enter_context(process.running(through=through))
        for process in found.values():
            process.until(partial(has_its_workers, process))
        yield found


def has_its_workers(process: Process) -> bool:
    """True once all workers that there are to be serve."""
    workers = (process.get("/status") or {}).get("workers", {})
    return bool(workers.get("wanted") == workers.get("serving"))


async def compared(processes: Mapping[str, Process], ask: Asking) -> None:
    """Measure each in turn, after a round that does not count, and print what came of it."""
    rows: dict[str, list[Measured]] = {name: [] for name in processes}
    for turn in range(ROUNDS + 1):
        in_turn = [*processes.items()]
        for name, process in in_turn if turn % 2 else reversed(in_turn):
            rows[name].append(await measured(process, ask))
    print(f"\n{ask} (medians of {ROUNDS}, and ranges)")
    for name, row in rows.items():
        told(name, row[1:])


def told(name: str, row: list[Measured]) -> None:
    """Print a line for each figure."""
    figures = {
        "tokens a second": [each.tokens for each in row],
        "first token, ms": [each.first * 1e3 for each in row],
        "tokens that came with another, %": [each.together * 1e2 for each in row],
    }
    for kind in sorted(row[0].cpu):
        taken = [each.cpu.get(kind, 0.0) * 1e3 for each in row]
        figures[f"processor ms for 1,000 tokens: {kind}"] = taken
    for what, values in figures.items():
        spread = f"{min(values):.1f}-{max(values):.1f}"
        print(f"  {name:<14} {what:<48}{median(values):10.1f}   {spread}")


@pytest.mark.parametrize("route", ["/generate", "/v1/completions"])
async def test_front_of_a_stand_in(tmp_path: Path, route: str) -> None:
    with daemons(tmp_path, "tests.bench.stand_in") as processes:
        for streams in STREAMS:
            await compared(processes, Asking(route, streams, TOKENS["stand-in"]))


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT])
async def test_front_of_prompts(tmp_path: Path, prompt: int) -> None:
    """Each answer is one token: 1,000 of them are 1,000 prompts."""
    with daemons(tmp_path, "tests.bench.stand_in") as processes:
        for route in ("/generate", "/v1/chat/completions"):
            await compared(processes, Asking(route, 8, 1, prompt, PROMPTS_A_ROUND))


@pytest.mark.real_engine
@pytest.mark.parametrize("streams", STREAMS)
async def test_front_of_an_engine(
    tmp_path: Path, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
    args = {
        "max_total_tokens": 50 * streams,
        "context_length": 64,
        "max_running_requests": streams,
        "chunked_prefill_size": max(64, streams),
    }
    written = ",".join(f"{name}={value}" for name, value in args.items())
    with daemons(tmp_path, "tests.bench.named_threads", f"engine.args={{{written}}}") as processes:
        await compared(processes, Asking("/generate", streams, TOKENS["real"]))
