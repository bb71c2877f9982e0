"""An engine over three ranks that are all in this process, each with a fake of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hotreload.hosts.engine.engine_over_ranks import EngineOverRanks
from hotreload.hosts.steps import About, StepFollower, StepSeconds, take_part
from hotreload.hosts.vote import Chair, Follower
from hotreload.types import Checkpoint, Revision
from tests.fakes import FakeEngine, Steps, unread
from tests.hosts.memory import MemoryStore

OLD = Revision("old", "step_1")
NEW = Revision("new", "step_2")


class FakeRank(FakeEngine):
    """One rank's part, which notes for which steps nobody is to wait any more."""

    def __init__(self, live: Revision) -> None:
        super().__init__(Steps(), live)
        self.withdrawn: list[int] = []

    def withdraw(self, step: int) -> None:
        self.withdrawn.append(step)


class FollowsOnly(StepFollower[Any]):
    """A rank that follows, without a daemon's life around it."""

    def __init__(self, own: Any, prepare: Callable[[Revision], Awaitable[Checkpoint]]) -> None:
        super().__init__()
        self.take_over(own)
        self._prepare = prepare
        self.told: list[About] = []
        """What it was to write down as live."""
        self.passed: list[str] = []
        """The failpoints it passed."""

    async def reach(self, point: str) -> None:
        self.passed.append(point)

    async def prepare(self, revision: Revision) -> Checkpoint:
        return await self._prepare(revision)

    async def introduce(self) -> About:
        raise NotImplementedError

    async def prepare_start(self, about: About) -> None:
        raise NotImplementedError

    async def build(self) -> None:
        raise NotImplementedError

    async def record(self, about: About) -> None:
        self.told.append(about)


class Slice:
    """Rank 0 and two others, each with an engine of its own that a test can break."""

    def __init__(self, live: Revision) -> None:
        self.engines = [FakeRank(live) for _ in range(3)]
        self.own, self.second, self.third = self.engines
        self.store = MemoryStore()
        self.prepared: list[Revision] = []
        self.chair = Chair(self.store, [1, 2])
        own: Any = self.own
        seconds = StepSeconds(meet=30, stage=30, prove=30, other=30)
        self.over = EngineOverRanks(own, self.chair, seconds)
        self.following = [FollowsOnly(engine, self.prepare) for engine in self.engines[1:]]

    def patient(self, **seconds: float) -> None:
        """Wait as long for the other ranks."""
        self.over._ranks.seconds = replace(self.over._ranks.seconds, **seconds)

    async def prepare(self, revision: Revision) -> Checkpoint:
        self.prepared.append(revision)
        return unread(revision)

    @property
    def live(self) -> list[str]:
        return [engine.weights.live.revision.id for engine in self.engines]

    @property
    def sets(self) -> list[int]:
        return [engine.sets_held for engine in self.engines]


@asynccontextmanager
async def running(live: Revision = OLD, within: float | None = 60) -> AsyncIterator[Slice]:
    made = Slice(live)
    async with AsyncExitStack() as ended, asyncio.timeout(within):
        for rank, following in enumerate(made.following, start=1):
            follow = Follower(made.store, rank).follow(partial(take_part, following))
            task = asyncio.create_task(follow)
            ended.push_async_callback(gone, task)
        yield made


async def gone(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)  # its end is heard
