"""The core in the way that overlaps, and clients whose answers take as long as a test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.engines.background import close_drained_generations, react_to_nonfinite_answers
from hotreload.core.rules import Rules
from hotreload.errors import EngineLost
from hotreload.events import GateChanged, GenerationEnded
from hotreload.types import GateState, Mode
from tests.core.conftest import World
from tests.fake_answers import FOR_EVER
from tests.waiting import PATIENCE, turn_until

RULES = Rules(probe_timeout=0.25, prove_within=0.05, finish_timeout=5.0)


class Overlapping(World):
    """As the daemon runs it: beside the reconciler somebody sees old generations out."""

    def __init__(self, folder: Path, rules: Rules = RULES, **more: Any) -> None:
        super().__init__(folder, rules, mode=Mode.OVERLAP, **more)
        self._rules = rules
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self, *, heeds: bool = False) -> AsyncIterator["Overlapping"]:
        self.task = asyncio.create_task(self.life(heeds=heeds))
        try:
            yield self
        finally:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=PATIENCE)
            assert self.task.done(), "the core did not stop"

    async def life(self, *, heeds: bool = False) -> None:
        """Until it is cancelled, or the engine is lost."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reconciler.run())
            tasks.create_task(
                close_drained_generations(
                    self.replica, keep=self._rules.keep_previous, publish=self.publish
                )
            )
            if heeds:
                tasks.create_task(
                    react_to_nonfinite_answers(
                        self.replica,
                        publish=self.publish,
                        drain_timeout=lambda: 0.05,
                        leave=self.operator.leave,
                    )
                )

    async def loses_the_engine(self) -> None:
        """Live until the engine is lost."""
        async with asyncio.timeout(self.patience):
            with pytest.RaisesGroup(EngineLost, flatten_subgroups=True):
                await self.life()

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        """A client whose answer has begun, and ends when the test says so."""
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self.gate.admit())
            request = await lease.engine.prepare({"text": FOR_EVER, "stream": True})
            answer = partial(lease.engine.generate, request, lease.weights)
            pieces = await stack.enter_async_context(aclosing(answer()))
            yield Client(lease.generation.number, pieces, await anext(pieces), stack)

    @property
    def ended(self) -> list[int]:
        """The numbers of the generations that were told to have ended."""
        return [e.generation.number for e in self.happened if isinstance(e, GenerationEnded)]

    @property
    def answering(self) -> dict[int, int]:
        """How many requests each generation answers, newest first."""
        return {each.generation.number: each.requests for each in self.gate.list_answering()}

    def was_held(self) -> bool:
        """Whether the gate ever closed for anybody."""
        moves = (e for e in self.happened if isinstance(e, GateChanged))
        return any(move.state is GateState.HOLDING for move in moves)

    async def only_one_answers(self) -> None:
        """Until nothing fades any more."""
        await turn_until(lambda: not self.replica.fading)


class Client:
    """Somebody whose answer is under way."""

    def __init__(
        self, generation: int, pieces: AsyncIterator[Any], first: Any, inside: AsyncExitStack
    ) -> None:
        self.generation = generation
        """Which generation the lease said."""
        self._pieces = pieces
        self._said = [first]
        self._inside = inside

    async def goes_on(self) -> str:
        """What was said when one more word has come."""
        async with asyncio.timeout(PATIENCE):
            self._said.append(await anext(self._pieces))
        return str(self._said[-1]["text"])

    async def to_its_end(self) -> str:
        """What was said when somebody ended it; whoever hears that leaves."""
        self._said += [piece async for piece in self._pieces]
        await self._inside.aclose()
        return str(self._said[-1]["text"])

    @property
    def was_cut_short(self) -> bool:
        """Whether somebody ended the answer early."""
        return self._said[-1]["meta_info"]["finish_reason"] is not None

    async def leaves(self) -> None:
        await self._inside.aclose()
