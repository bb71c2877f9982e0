"""A program that holds an invented engine, by its changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.background import close_drained_generations
from hotreload.core.engines.replica import Replica
from hotreload.core.ledger import Ledger
from hotreload.core.rules import Rules
from hotreload.core.way_in.gate import Gate
from hotreload.errors import EngineLost
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.weight_changes import WeightChanges
from hotreload.types import Mode, Revision
from tests.fakes import FakeEngine, Steps, unread
from tests.waiting import turn_until

RULES = Rules(drain_timeout=0.05, probe_timeout=0.25, prove_within=0.05)


class Program:
    """Who holds an engine: an invented one."""

    def __init__(self, mode: Mode, rules: Rules) -> None:
        self.steps = Steps()
        self.engine = FakeEngine(self.steps, Revision("first", "step 0"))
        self.gate = Gate[FakeEngine](publish=lambda event: None)
        attempts = Attempts(
            Ledger(), write=nothing, publish=lambda event: None, is_lost=lambda: self.gate.is_lost
        )
        live = attempts.mint(self.engine.live)
        attempts.record_live(live, Path("model"))
        self.replica = Replica(self.engine, self.gate, live, mode)
        self.replica.open()
        self.changes = WeightChanges(
            self.replica, attempts, rules, check=self.gate.get_engine, check_there=lambda: None
        )

    async def stage(self, name: str) -> AsyncStagedWeights:
        """A checkpoint of this name; one that says so is a part of the tensors."""
        checkpoint = replace(unread(Revision(name, name)), is_part="part" in name)
        return await self.changes.stage(checkpoint)

    async def update(self, name: str) -> int:
        return (await (await self.stage(name)).flip()).number

    async def rollback(self, number: int | None = None) -> Any:
        place = self.changes.place_to_go_back_to(number)
        self.changes.overrule()
        return await self.changes.back(place)

    def in_memory(self, number: int) -> None:
        """Forget the files of a generation, as if it had been given in memory."""
        places = self.changes._ledger.generations
        at = next(at for at, place in enumerate(places) if place.number == number)
        places[at] = replace(places[at], path="")

    async def rested(self) -> None:
        """Until what nobody is answered by is put away."""
        await turn_until(lambda: not self.replica.fading)

    @property
    def says(self) -> str:
        return str(self.engine.live.weights.says)


async def nothing(ledger: Ledger) -> None:
    """It outlives nothing."""


@asynccontextmanager
async def running(mode: Mode, rules: Rules = RULES) -> AsyncIterator[Program]:
    """A program, and what runs beside it."""
    program = Program(mode, rules)
    closing = close_drained_generations(
        program.replica, keep=rules.keep_previous, publish=lambda event: None
    )
    task = asyncio.create_task(closing)
    try:
        yield program
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, EngineLost):
            await task
