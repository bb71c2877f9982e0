"""From the rename of a checkpoint to its first answers, step by step.

By its size, by what else wants the processors, by the share of it that changed, and by how long its
storage takes for a read. Each folder is a copy that nothing has read before; pages are in memory.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.file_reader import OpenFile
from hotreload.events import GenerationLive, PhaseEntered
from hotreload.types import Outcome, Phase
from tests.bench import plots
from tests.bench.checkpoints import FOUR_GB, HALF_A_GB, TWO_GB, Shape, model, with_layers_changed
from tests.bench.figures import median
from tests.bench.test_starving import busy_loops
from tests.integration.running import Running
from tests.integration.test_load import is_warm

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

SIZES = {"0.01 GB": Shape(1, 256, 768, 2, 1), "0.1 GB": Shape(3), "0.63 GB": HALF_A_GB}
LARGE = {"2 GB": TWO_GB, "4 GB": FOUR_GB}
"""Beside busy loops the steps of its probe would take minutes."""
LOOPS = (0, 1, 2, 4)
SMALL_BATCHES = (
    "{max_total_tokens=512,context_length=64,max_running_requests=1,chunked_prefill_size=32,"
    "precompile_bs_paddings=[1],precompile_token_paddings=[32]}"
)
"""The probe computes no more than it needs to: a CPU takes seconds for a prompt of 256 tokens."""
ROUNDS = 3
SLOW_READ = 0.01
NAMING, REST = "naming", "rest"
STEPS = (NAMING, Phase.STAGING, Phase.PROBING, Phase.SWAPPING, REST)


class Curve:
    """A daemon that is given one of two contents in turn, and how long each step of it took."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._contents = [model(folder / f"content_{seed}", shape, seed) for seed in (1, 2)]
        model(folder / "model", shape)
        self._folder = folder
        self._number = 1
        self.running = Running(
            folder,
            f"engine.model={folder / 'model'}",
            f"engine.args={SMALL_BATCHES}",
            "engine.staging_priority=idle",
            "reload.keep_previous=device",
            "probe=[{prompt='The', max_new_tokens=4}]",
        )
        self.running.patience = 600
        self.running.checkpoints.mkdir()

    def change(self, layers: int) -> None:
        """From now on give it two contents that differ in so many layers."""
        like = self._contents[0]
        other = with_layers_changed(like, self._folder / f"changed_{layers}", range(layers))
        self._contents = [like, other]

    async def round(self) -> Mapping[str, float]:
        """Rename the next content into place, and return the seconds of each step."""
        self._number += 1
        name = f"step_{self._number}"
        part = self._folder / name
        shutil.copytree(self._contents[self._number % 2], part)
        before = len(self.running.happened)
        clock = Clock(self.running, name)
        part.rename(self.running.checkpoints / name)
        attempt = await self.running.attempted(self.running.checkpoints / name)
        assert attempt.outcome is Outcome.LIVE, attempt
        found = clock.steps(dict(attempt.phases), self.running.happened[before:])
        clock.close()
        shutil.rmtree(self.running.checkpoints / name)
        return found


class Clock:
    """Notes when a checkpoint was renamed, when an attempt at it began, and when it was live."""

    def __init__(self, running: Running, name: str) -> None:
        self._name = name
        self._renamed = time.monotonic()
        self._began = self._live = 0.0
        self.close = running.daemon.events.subscribe(self._note)

    def _note(self, event: Any) -> None:
        match event:
            case PhaseEntered(revision, Phase.FETCHING) if revision.label == self._name:
                self._began = time.monotonic()
            case GenerationLive(generation) if generation.revision.label == self._name:
                self._live = time.monotonic()

    def steps(self, phases: dict[Phase, float], happened: list[Any]) -> Mapping[str, float]:
        whole = self._live - self._renamed
        steps: dict[str, float] = {NAMING: self._began - self._renamed}
        steps |= {step: phases.get(step, 0.0) for step in STEPS if isinstance(step, Phase)}
        return steps | {REST: whole - sum(steps.values()), "whole": whole}


async def measured(curve: Curve, what: str) -> float:
    """Print the medians of some rounds, and return that of the whole."""
    await curve.round()
    rounds = [await curve.round() for _ in range(ROUNDS)]
    whole = sorted(each["whole"] for each in rounds)
    steps = "".join(f"{median([each[step] for each in rounds]):>9.2f}" for step in STEPS)
    spread = f"{median(whole):.2f} s ({whole[0]:.2f}-{whole[-1]:.2f})"
    print(f"{what:<38}{steps}   {spread}", flush=True)
    return median(whole)


def print_head(title: str) -> None:
    print(f"\n{title}\n{'':<38}" + "".join(f"{step:>9}" for step in STEPS) + "   whole")


async def test_by_size_and_load(tmp_path: Path) -> None:
    print_head("from the rename to live, in seconds")
    lines = {f"{loops} busy loops": list[tuple[float, float]]() for loops in LOOPS}
    for size, shape in (SIZES | LARGE).items():
        curve = Curve(tmp_path / size, shape)
        async with curve.running.serving():
            await curve.running.until(lambda: any(map(is_warm, curve.running.happened)))  # noqa: B023
            for loops in LOOPS if size in SIZES else (0,):
                with busy_loops(loops):
                    took = await measured(curve, f"{size}, {loops} busy loops")
                lines[f"{loops} busy loops"].append((float(size.split()[0]), took))
    plots.lines("curve-load", "From the rename to live", "GB", "s", lines)


async def test_by_what_changed_and_by_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print_head("from the rename to live, in seconds, 0.63 GB")
    curve = Curve(tmp_path, SIZES["0.63 GB"])
    async with curve.running.serving():
        rows = {"all of it changed": await measured(curve, "all of it changed")}
        with ExitStack() as slowly:
            patch = slowly.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(OpenFile, "_read_once", slow(OpenFile._read_once))
            rows["each read takes 10 ms"] = await measured(curve, "each read takes 10 ms longer")
        curve.change(1)
        rows["1 of 20 layers changed"] = await measured(curve, "1 of 20 layers changed")
    plots.bars("curve-changed", "From the rename to live, 0.63 GB", rows, "s")


def slow(read: Any) -> Any:
    def slowly(*args: Any, **more: Any) -> Any:
        time.sleep(SLOW_READ)
        return read(*args, **more)

    return slowly
