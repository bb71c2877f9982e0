"""How long staging takes where others want every processor, and what a client beside it sees."""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from hotreload import quiet
from hotreload.engine.lanes.pool_shares import PoolShares
from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from hotreload.quiet import LITTLE, NICENESS, QUIET, yield_processors
from hotreload.tiny import write_tiny
from tests.bench.checkpoints import HALF_A_GB, model
from tests.bench.test_comparing import spread
from tests.bench.test_staging import timed
from tests.bench.test_unnoticed import client, figures_of
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = 3
IDLE = 20
BEGUN = {
    "10, then 5, 0": NICENESS,
    "10 alone": (LITTLE,),
    "19, then 10, 5, 0": (19, *NICENESS),
    "idle, then 19, 10, 5, 0": (IDLE, 19, *NICENESS),
}
"""By which niceness threads begin, and which they may come to: the first is what is done."""
BUSY = "import os; by = os.getppid()\nwhile os.getppid() == by: sum(range(10**6))"
"""A loop that ends with what started it, however that ended."""
QUIETLY, LOADED = "nothing else", "two busy loops"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def test_staging_beside_busy_loops(tmp_path: Path) -> None:
    """A small model's client shows for how long processors, and Python's lock, are kept from it."""
    took: dict[str, list[float]] = {}
    seen: dict[str, list[float]] = {}
    live, small = model(tmp_path / "live", HALF_A_GB), write_tiny(tmp_path / "small")
    new = real.checked(model(tmp_path / "new", HALF_A_GB, 1))
    async with (
        real.engine_of(live, tmp_path / "spool", quiet=QUIET) as engine,
        real.engine_of(small, tmp_path / "small_spool", quiet=QUIET) as answering,
        client(answering) as came,
    ):
        for beside, count in ((QUIETLY, 0), (LOADED, len(os.sched_getaffinity(0)))):
            with busy_loops(count):
                seen[beside] = await gaps_while(came, asyncio.sleep(5))
                for how in [*BEGUN] * ROUNDS:
                    with beginning_by(BEGUN[how]):
                        gaps, key = seen.setdefault(f"{beside}; {how}", []), f"{beside}; {how}"
                        staging = timed(took.setdefault(key, []), engine.weights.stage, new)
                        first = len(came)
                        await engine.weights.release(await staging)
                        gaps += [b - a for a, b in itertools.pairwise(came[first:])]
    print(f"\n{new.bytes / 1e9:.2f} GB are staged beside a client of a small model")
    for key, gaps in seen.items():
        idle = seen[key.partition(";")[0]]
        print(f"{key:40} {figures_of(gaps, idle)}   max {max(gaps) * 1e3:.0f} ms", end="")
        print(f"   {spread(took[key])}" if key in took else "")


async def gaps_while(came: list[float], work: Any) -> list[float]:
    first = len(came)
    await work
    return [later - sooner for sooner, later in itertools.pairwise(came[first:])]


@contextmanager
def beginning_by(niceness: tuple[int | None, ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quiet, "NICENESS", niceness)
        patch.setattr(quiet, "LAST", len(niceness) - 1)
        patch.setattr(quiet, "TAKES_ALL", 0)
        patch.setattr(quiet, "yield_processors", lowered)
        yield


def lowered(niceness: int) -> None:
    if niceness == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        yield_processors(niceness)


async def test_longest_gap_beside_a_comparison(tmp_path: Path) -> None:
    """Its questions in pieces, and all at once, in turn; a client's own prompt takes a gap, too."""
    took: dict[str, list[float]] = {"in pieces": [], "all at once": []}
    longest: dict[str, list[float]] = {name: [] for name in ("nothing else", *took)}
    live, new = (write_tiny(tmp_path / f"{steps}", steps=steps) for steps in (36, 40))
    async with (
        real.engine_of(live, tmp_path / "spool", quiet=QUIET, compares=True) as engine,
        client(engine) as came,
    ):
        staged = await engine.weights.stage(real.checked(new))
        both = BothWeights(engine, engine.weights.live, staged)
        await compare_both(both, KnownAnswers())  # what is not compiled yet is now
        with busy_loops(len(os.sched_getaffinity(0))):
            for _ in range(5):
                longest["nothing else"].append(max(await gaps_while(came, asyncio.sleep(5))))
                for how, seconds in took.items():
                    with pytest.MonkeyPatch.context() as patch:
                        if how == "all at once":
                            patch.setattr(PoolShares, "_in_pieces", nullcontext)
                        work = timed(seconds, compare_both, both, KnownAnswers())
                        longest[how].append(max(await gaps_while(came, work)))
    print("\nthe longest gap between two tokens of a tiny model, beside busy loops")
    for how, gaps in longest.items():
        took_words = f"   a comparison {spread(took[how])}" if how in took else ""
        print(f"beside {how:20} {spread(gaps)}{took_words}")
