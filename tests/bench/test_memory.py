"""How much memory of the host staging takes at its peak, and what is left of it."""

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from hotreload.facts.heap import give_back
from hotreload.quiet import Quiet
from tests.bench import plots
from tests.bench.checkpoints import HALF_A_GB, by_upstream, model
from tests.bench.test_staging import BY_OURS, COPIED
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = 20


@pytest.mark.parametrize("memory", ["double", "host"])
async def test_how_much_memory_staging_takes(tmp_path: Path, memory: str) -> None:
    live = model(tmp_path / "live", HALF_A_GB)
    peaks = {}
    async with real.engine_of(live, tmp_path / "spool", quiet=Quiet(), memory=memory) as engine:
        checkpoint = real.checked(model(tmp_path / "new", HALF_A_GB, 1))
        give_back()  # what the start has freed is no part of it
        began = resident()
        for name, chosen in ((BY_OURS, nullcontext), (COPIED, by_upstream)):
            for _ in range(2):  # the first time, what every later one takes is loaded too
                with chosen(), Peak(began) as peak:
                    staged = await engine.weights.stage(checkpoint)
                on_device = real.bytes_of_arrays(1 << 20) / checkpoint.bytes
                await engine.weights.release(staged)
            peaks[name] = peak.rise / checkpoint.bytes
            print(
                f"\n{memory}: {name:32} {peaks[name]:.2f} times the checkpoint at the peak", end=""
            )
            print(f", {on_device:.2f} times on the device while it waits")
    plots.bars(f"memory-{memory}", f"Peak host memory above the live set, {memory}", peaks, "times")


async def test_what_twenty_rounds_leave(tmp_path: Path) -> None:
    live = model(tmp_path / "live", HALF_A_GB)
    async with real.engine_of(live, tmp_path / "spool", quiet=Quiet(priority="normal")) as engine:
        checkpoints = [real.checked(model(tmp_path / f"new_{n}", HALF_A_GB, n)) for n in (1, 2)]
        kept = []
        for at in range(ROUNDS):
            staged = await engine.weights.stage(checkpoints[at % 2])
            before = await engine.switch.flip(staged)
            await engine.switch.retire(before)
            await engine.weights.release(before)
            kept.append((resident(), await real.device_bytes(), threading.active_count()))
            await asyncio.sleep(0)
    size = checkpoints[0].bytes
    print(f"\nafter rounds 3 and {ROUNDS}, of {size / 1e9:.2f} GB each:")
    for name, at in (("resident", 0), ("in arrays", 1)):
        early, late = kept[2][at], kept[-1][at]
        print(
            f"{name:12} {early / 1e9:6.2f} GB   {late / 1e9:6.2f} GB   {(late - early) / size:+.1%}"
        )
    print(f"{'threads':12} {kept[2][2]:6}      {kept[-1][2]:6}")
    assert kept[-1][1] == kept[2][1]


class Peak:
    """How much memory the process took at most, above where it began."""

    def __init__(self, began: int | None = None) -> None:
        self._began = resident() if began is None else began
        self.rise = 0

    def __enter__(self) -> "Peak":
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.rise = max(self.rise, resident() - self._began)


def resident() -> int:
    """What the process keeps from others: not what the system may take back at any moment."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 - lazily_freed()


def lazily_freed() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("LazyFree:")) * 1024
