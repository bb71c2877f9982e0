"""How long a swap takes that drains, and how soon it begins. `make bench` prints the tables.

The baseline of each run is what a reload inside the pause would cost: load and exchange, with
the gate closed all the time.
"""

import math
import time
from pathlib import Path

import pytest

from hotreload.attempts import Attempt
from hotreload.events import Event, RevisionWanted
from hotreload.types import Outcome, Phase
from tests.bench.figures import median, print_table
from tests.engine.real import device_bytes
from tests.integration.running import Load, Running, mixed

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(600)]

SWAPS = 60
LONG_RUN = 200


class Times:
    """What one swap after the other took."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.inside: list[float] = []

    async def swap(self, running: Running, number: int) -> None:
        attempt = await running.attempted(running.drop(number))
        assert attempt.outcome is Outcome.LIVE, attempt
        self.attempts.append(attempt)
        self.inside.append(running.engine.switch.last_exchange_seconds or math.nan)

    def rows(self) -> dict[str, list[float]]:
        def phase(name: Phase) -> list[float]:
            return [attempt.phases[name] for attempt in self.attempts]

        loading = [
            attempt.phases[Phase.STAGING] + attempt.phases[Phase.SWAPPING]
            for attempt in self.attempts
        ]
        return {
            "reload inside the pause (the baseline)": loading,
            "pause (gate closed: drain, exchange, probe)": [
                attempt.pause_seconds for attempt in self.attempts
            ],
            "  drain": phase(Phase.DRAINING),
            "  exchange, round trip": phase(Phase.SWAPPING),
            "  exchange, inside the scheduler thread": self.inside,
            "  probe": phase(Phase.PROBING),
            "checks": phase(Phase.VALIDATING),
        }


async def test_swap_times_idle_and_under_load(tmp_path: Path) -> None:
    running = Running(tmp_path, "source.settle=0", "reload.mode=drain")
    running.drop(1)
    async with running.serving():
        for number in (2, 3):
            await running.attempted(running.drop(number))
        idle, loaded = Times(), Times()
        for number in range(4, 4 + SWAPS):
            await idle.swap(running, number % 100 + 100 * (number // 100))
        async with Load(running, 4).on() as load:
            for number in range(70, 70 + 29):
                await loaded.swap(running, number)
    baseline = "reload inside the pause (the baseline)"
    print_table(f"{SWAPS} swaps of an idle daemon", idle.rows(), baseline)
    print_table("29 swaps under 4 clients in a closed loop", loaded.rows(), baseline)
    assert load.failures == []
    assert median(idle.rows()["  exchange, inside the scheduler thread"]) < 0.001
    assert median(idle.rows()["  exchange, round trip"]) < 0.005


async def test_how_soon_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    """From the end of the rename to the wish; polling every 5 s takes 2.5 s on average."""
    wished: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, RevisionWanted):
            wished[event.revision.label] = time.monotonic()

    running = Running(tmp_path, "source.settle=2")
    running.drop(1)
    delays = []
    async with running.serving():
        running.daemon.events.subscribe(note)
        for number in range(2, 42):
            folder = running.drop(number)
            dropped = time.monotonic()
            await running.attempted(folder)
            delays.append(wished[folder.name] - dropped)
    baseline = "polling every 5 s (the baseline)"
    print_table("detection", {baseline: [2.5] * 2, "rename to the wish": delays}, baseline)
    assert median(delays) < 0.05


async def test_two_hundred_swaps_leave_nothing_behind(tmp_path: Path) -> None:
    # Folders of the same names come again: the newest is the one that was written last.
    running = Running(tmp_path, "source.settle=0", "source.order=time")
    running.drop(1)
    async with running.serving():
        for number in (2, 3):
            await running.attempted(running.drop(number))
        before = await device_bytes()
        async with Load(running).on() as load:
            for count in range(LONG_RUN):
                number = 4 + count % 90
                folder = running.drop(number)
                live = running.live.number
                await running.until(lambda live=live: running.live.number > live)  # type: ignore[misc]
                assert folder.name == running.live.revision.label
        for _ in range(3):
            await running.ask()
        after = await device_bytes()
    print(f"\n{LONG_RUN} swaps, {len(load.answers)} answers, {len(load.failures)} failed")
    print(f"device bytes: {before} before, {after} after")
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
