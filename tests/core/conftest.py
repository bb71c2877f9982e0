import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotreload.attempts import Attempt, By, Evidence
from hotreload.core.attempt_records import Attempts
from hotreload.core.decision import Sleep
from hotreload.core.engines.replica import Replica, Replicas
from hotreload.core.judge import MakeJudges, no_judges
from hotreload.core.ledger import Ledger
from hotreload.core.operator import Operator
from hotreload.core.reconcile import Reconciler
from hotreload.core.rules import Rules
from hotreload.core.way_in.entrance import Entrance
from hotreload.events import AttemptFinished, Events, PhaseEntered, Wait
from hotreload.life.saved.state_json import from_json, to_json
from hotreload.types import Checkpoint, Generation, Mode, Phase, Revision
from tests.fakes import FakeEngine, FakeSource, Steps, unread
from tests.waiting import PATIENCE, Witness


def by(verb: str) -> By:
    """Somebody with rights who says why."""
    return By(verb, 1000, 77, 1000.0, f"why {verb}")


class Terminal:
    """Asks the operator's things as the admin routes do: somebody asks, and says so."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __getattr__(self, verb: str) -> Any:
        return partial(getattr(self._operator, verb), by=by(verb))


class World(Witness):
    """The core with fakes at its two ports, and everything that happened in it."""

    def __init__(
        self,
        folder: Path,
        rules: Rules,
        *,
        replica: int = 0,
        mode: Mode = Mode.DRAIN,
        engines: int = 1,
        judges: MakeJudges = no_judges,
        blank: Sequence[Evidence] = (),
    ) -> None:
        super().__init__()
        self.steps = Steps()
        bus = Events()
        bus.subscribe(self.note)
        self.publish, self.subscribe = bus.publish, bus.subscribe
        first = Revision("first", "step_0")
        self.engine = FakeEngine(self.steps, first)
        self.engines = [self.engine, *(FakeEngine(Steps(), first) for _ in range(1, engines))]
        """Each breaks at steps of its own."""
        self.source = FakeSource(self.steps, folder)
        self.source.known[first.label] = first
        self.entrance = Entrance[FakeEngine](bus.publish, replicas=engines, max_held=8)
        for gate in self.entrance.gates:
            gate.replica += replica
        self.gate = self.entrance.gates[0]
        staged = self.engine.live
        live = Generation(1, first, staged.fingerprint, 0.0, staged.leaves, staged.bytes)
        made = zip(self.engines, self.entrance.gates, strict=True)
        self.each = [Replica(engine, gate, live, mode) for engine, gate in made]
        self.replica = self.each[0]
        self.replicas = Replicas({each.index: each for each in self.each})
        self.ledger = Ledger()
        self.ledger.went_live(live, str(folder / first.label))
        self.on_disk = b""
        self.disk_fault: str | None = None
        for each in self.each:
            each.open()
        self.now = 0.0
        self.wall = 1000.0
        self.recording = Attempts(
            self.ledger,
            write=self._save,
            publish=bus.publish,
            is_lost=lambda: self.entrance.is_lost,
            clock=lambda: self.now,
            wall=lambda: self.wall + self.now,
            blank=tuple(blank),
        )
        self.reconciler = Reconciler(
            source=self.source,
            replicas=self.replicas,
            attempts=self.recording,
            validate=self._validate,
            rules=rules,
            judges=judges,
        )

        self.operator = Terminal(
            Operator(
                self.reconciler, source=self.source, replicas=self.replicas, publish=bus.publish
            )
        )

    async def _validate(self, revision: Revision, path: Path) -> Checkpoint:
        await self.steps.pass_through("validate")
        return unread(revision, path)

    async def _save(self, ledger: Ledger) -> str | None:
        if self.disk_fault is None:
            self.on_disk = to_json(ledger)
        return self.disk_fault

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
        waits = (e.waiting_for for e in reversed(self.happened) if isinstance(e, Wait))
        return next(waits, None)

    def wish(self, revision: Revision) -> None:
        """As the source does, where the test takes the turns of the reconciler itself."""
        self.source.known[revision.label] = revision
        self.ledger.wish(revision)

    async def rests(self) -> Sleep:
        """Until nothing is left to do: what there is, is done turn by turn, here and now."""
        await self.source.heard()
        while (rest := await self.reconciler.turn()) is None:
            pass
        return rest

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
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.done(), "the reconciler did not stop"

    async def ask(self) -> str:
        async with self.entrance.admit() as lease:
            return f"{lease.generation.number}: {lease.engine.answer(lease.weights)}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, Rules(drain_timeout=0.1, probe_timeout=0.25, prove_within=0.05))
