"""What a start costs, from exec to ready and to the first answer, beside upstream's bare `Engine`.

Both read the same compile cache, which a start of each has filled before, or none. So what is
compared is imports, the checks, reading and building, and the first answer, with or without what it
compiles; ours are probed ones. Ours is ready once it has asked its own first question, as the bare
one is with its first answer.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.tiny import write_tiny
from tests.bench import checkpoints
from tests.bench.bare_engine import ONE_DEVICE
from tests.bench.figures import median, p99
from tests.integration.process import START_SECONDS, Process

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("HOTRELOAD_BENCH_ROUNDS", "5"))
ARGS = {
    "max_total_tokens": 2048,
    "context_length": 256,
    "max_running_requests": 16,
    "chunked_prefill_size": 256,
}
MODELS: dict[str, Callable[[Path], Path]] = {
    "tiny": lambda folder: write_tiny(folder, "served by step 1"),
    "0.5 GB": lambda folder: checkpoints.model(folder, checkpoints.Shape(16)),
}


Seconds = tuple[float, float, float]
"""To the first answer of a bare engine, until ours is ready, and to our first answer."""


def bare(folder: Path, model: Path) -> float:
    """Seconds from exec to its first answer."""
    command = [sys.executable, "-m", "tests.bench.bare_engine", str(model), json.dumps(ARGS)]
    ends: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    began = time.monotonic()
    with (
        (folder / "bare.log").open("ab") as log,
        subprocess.Popen(command, stderr=log, **ends) as child,
    ):
        assert child.stdout is not None
        told = child.stdout.readline()
        taken = time.monotonic() - began
        child.kill()
    assert len(json.loads(told or "null") or ()) == 1, (folder / "bare.log").read_text()[-3000:]
    return taken


class Daemon(Process):
    """A daemon on this model, begun as a program of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        args = ",".join(f"{name}={value}" for name, value in ARGS.items())
        sets = (f"engine.model={model}", f"engine.args={{{args}}}", "engine.warm_batches=16")
        super().__init__(folder, *sets)
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def executed(self) -> Iterator[None]:
        """A program of its own, from when it is ready to the end of the block."""
        self.log.unlink(missing_ok=True)
        self.start(through=("/usr/bin/env",))
        try:
            self.until(lambda: self.get("/readyz") is not None, START_SECONDS)
            yield
            assert self.stop() == 0
        finally:
            if self.child.poll() is None:
                self.child.kill()
            self.child.wait()

    def first_answer(self) -> tuple[float, float, dict[str, Any]]:
        """Seconds from exec until it is ready, and to it, and what the log says they went into."""
        began = time.monotonic()
        with self.executed():
            ready = time.monotonic() - began
            self.ask(max_new_tokens=1)
            taken = time.monotonic() - began
            self.until(lambda: self.said("boot.warmed"), START_SECONDS)  # the cache has it all
            (told,), (engine,) = self.said("boot.answers"), self.said("engine.started")
            if engine["loader"] == "upstream":  # later starts are to know that ours may be trusted
                self.until(lambda: self.said("loader.trusted"), START_SECONDS)
        building = {f"building: {who}": took for who, took in engine["start_seconds"].items()}
        return ready, taken, {**told, "loader": engine["loader"], **building}


@pytest.mark.parametrize("cache", ["all compiled", "nothing compiled"])
@pytest.mark.parametrize("size", MODELS)
def test_start_beside_a_bare_engine(
    tmp_path: Path, size: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: str) -> None:
        folder = "compiled" if cache == "all compiled" else folder
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / folder))

    monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
    model = MODELS[size](tmp_path / "model")
    daemon = Daemon(tmp_path, model)
    rows: list[Seconds] = []
    phases: list[dict[str, Any]] = []
    for at in range(ROUNDS + 1):  # the first fills the cache, and reads by upstream's loader
        read(f"theirs {at}")
        theirs = bare(tmp_path, model)
        read(f"ours {at}")
        ready, ours, told = daemon.first_answer()
        rows.append((theirs, ready, ours))
        phases.append(told)
    print_rows(f"{size}, {cache}", rows, phases)


def print_rows(size: str, rows: list[Seconds], phases: list[dict[str, Any]]) -> None:
    cold, warm = rows[0], rows[1:]
    theirs, ready, ours = ([row[at] for row in warm] for at in (0, 1, 2))
    print(f"\na start, {size}: seconds from exec to the first answer, {len(warm)} pairs")
    print(f"  {'a bare Engine':<28}{spread(theirs)}   (first, cold cache: {cold[0]:.2f})")
    print(f"  {'hotreload serve':<28}{spread(ours)}   (its programs half there: {cold[2]:.2f})")
    print(f"  {'times as long':<28}{spread([row[2] / row[0] for row in warm])}")
    print(f"  {'until it is ready':<28}{spread(ready)}")
    print(f"  {'times as long':<28}{spread([row[1] / row[0] for row in warm])}")
    print(f"    {'weights read by':<26}{', '.join(each['loader'] for each in phases)}")
    numbers = [name for name, value in phases[-1].items() if isinstance(value, float)]
    for name in numbers:
        print(f"    {name:<26}{spread([each[name] for each in phases[1:]])}")


def spread(values: list[float]) -> str:
    return f"{median(values):7.2f} ({min(values):.2f}-{max(values):.2f})"


async def test_what_a_client_notices_of_warming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One streams from when it is ready: while further sizes are compiled, and as long after."""
    monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
    daemon = Daemon(tmp_path, MODELS["tiny"](tmp_path / "model"))
    print("\nbetween two tokens while a start warms, beside the same client afterwards")
    for at, cache in enumerate(("nothing compiled", *["all compiled"] * 3)):
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
        with daemon.executed():
            beside = await gaps_until(daemon, lambda gaps: bool(daemon.said("boot.warmed")))
            after = await gaps_until(daemon, lambda gaps: len(gaps) >= len(beside))  # noqa: B023
            (warmed,) = daemon.said("boot.warmed")
        print(f"  {at}: {cache}, {warmed['sizes']} sizes in {warmed['seconds']:.1f} s", end="")
        for name, of in (("median", median), ("99 %", p99), ("longest", max)):
            ms = of(beside) * 1e3
            print(f"   {name} {ms:6.1f} ms {of(beside) / of(after):5.2f}x", end="")
        print(f"   ({len(beside)} tokens)")


async def gaps_until(
    daemon: Daemon, is_enough: Callable[[list[float]], bool], tokens: int = 100
) -> list[float]:
    """Seconds between the tokens of answers, one after the other, until these are enough."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    asked = {"text": "Who?", "sampling_params": sampling, "stream": True}
    gaps: list[float] = []
    async with daemon.client() as client:
        while not gaps or not is_enough(gaps):
            async with client.stream("POST", "/generate", json=asked) as answer:
                lines = answer.aiter_lines()
                came = [time.perf_counter() async for line in lines if line.startswith("data: {")]
            gaps += [after - before for before, after in itertools.pairwise(came)]
    return gaps


OTHERS, OTHERS_SIZE = 2000, 500_000
"""A gigabyte of programs of other models, as a folder has that was kept for months."""


def test_start_beside_a_gigabyte_of_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", ONE_DEVICE)
    model = MODELS["tiny"](tmp_path / "model")
    daemon = Daemon(tmp_path, model)
    little, much = "its own programs alone", "a gigabyte of others beside them"
    took: dict[str, list[float]] = {little: [], much: []}
    folders = {name: tmp_path / f"compiled {name}" for name in took}
    folders[much].mkdir()
    for number in range(OTHERS):
        name = f"jit_other-{number:064x}-cache"
        (folders[much] / name).write_bytes(os.urandom(OTHERS_SIZE))
    for at in range(ROUNDS + 1):  # the first fills the cache
        for name in (little, much) if at % 2 else (much, little):
            monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folders[name]))
            _, taken, _ = daemon.first_answer()
            if at:
                took[name].append(taken)
    print("\na start of a tiny model, by what the compile cache holds")
    for name, values in took.items():
        print(f"  {name:<34}{spread(values)}")
