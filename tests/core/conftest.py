import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotreload.core.asks import Operator
from hotreload.core.gate import Gate
from hotreload.core.ledger import Ledger, from_json, to_json
from hotreload.core.reconcile import Reconciler
from hotreload.core.reload import Replica, Rules
from hotreload.events import AttemptFinished, Event, Events, PhaseEntered, Waiting
from hotreload.types import Attempt, Checkpoint, Generation, Phase, Revision
from tests.fakes import FakeEngine, FakeSource, Steps


class World:
    """The core with fakes at its two ports, and everything that happened in it."""

    def __init__(self, folder: Path, rules: Rules, **reconciler: object) -> None:
        self.steps = Steps()
        self.happened: list[Event] = []
        self._changed = asyncio.Event()
        bus = Events()
        bus.subscribe(self._note)
        first = Revision("first", "step_0")
        self.engine = FakeEngine(self.steps, first)
        self.source = FakeSource(self.steps, folder)
        self.source.known[first.label] = first
        self.gate = Gate(publish=bus.publish, max_held=8)
        staged = self.engine.live
        live = Generation(1, first, staged.fingerprint, 0.0, staged.leaves, staged.bytes)
        self.replica = Replica(self.engine, self.gate, live)
        self.ledger = Ledger()
        self.ledger.went_live(live, str(folder / first.label))
        self.on_disk = b""
        self.gate.open(live)
        self.now = 0.0
        self.wall = 1000.0
        self.reconciler = Reconciler(
            source=self.source,
            replica=self.replica,
            ledger=self.ledger,
            validate=self._validate,
            save=self._save,
            publish=bus.publish,
            rules=rules,
            clock=lambda: self.now,
            wall=lambda: self.wall + self.now,
            **reconciler,  # type: ignore[arg-type]
        )

        self.operator = Operator(self.reconciler, source=self.source, replica=self.replica)

    def _note(self, event: Event) -> None:
        self.happened.append(event)
        self._changed.set()

    async def _validate(self, revision: Revision, path: Path) -> Checkpoint:
        await self.steps.pass_through("validate")
        return Checkpoint(revision, path, (), {}, 10)

    async def _save(self, ledger: Ledger) -> None:
        self.on_disk = to_json(ledger)

    def restarted_ledger(self) -> Ledger:
        return from_json(self.on_disk)

    @property
    def attempts(self) -> list[Attempt]:
        return [e.attempt for e in self.happened if isinstance(e, AttemptFinished)]

    @property
    def status_phase(self) -> Phase | None:
        phases = (e.phase for e in reversed(self.happened) if isinstance(e, PhaseEntered))
        return next(phases, None)

    @property
    def waiting_for(self) -> str | None:
        waits = (e.waiting_for for e in reversed(self.happened) if isinstance(e, Waiting))
        return next(waits, None)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def attempted(self, count: int = 1) -> Attempt:
        await self.until(lambda: len(self.attempts) >= count)
        return self.attempts[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        task = asyncio.create_task(self.reconciler.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=5)
            assert task.done(), "the reconciler did not stop"

    async def ask(self) -> str:
        async with self.gate.passing() as generation:
            return f"{generation.number}: {self.engine.answer()}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, Rules(drain_timeout=0.05, probe_timeout=0.05))
