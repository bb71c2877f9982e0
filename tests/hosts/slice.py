"""An engine over three ranks that are all in this process, each with a fake of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from hotreload.hosts.following import Following
from hotreload.hosts.over import OverRanks
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


class Slice:
    """Rank 0 and two others, each with an engine of its own that a test can break."""

    def __init__(self, live: Revision) -> None:
        self.engines = [FakeRank(live) for _ in range(3)]
        self.own, self.second, self.third = self.engines
        self.store = MemoryStore()
        self.prepared: list[Revision] = []
        self.chair = Chair(self.store, [1, 2])
        self.over = OverRanks(self.own, self.chair, stage_within=30, prove_within=30, within=30)

    async def prepare(self, revision: Revision) -> Checkpoint:
        self.prepared.append(revision)
        return unread(revision)

    @property
    def live(self) -> list[str]:
        return [engine.live.revision.id for engine in self.engines]

    @property
    def sets(self) -> list[int]:
        return [engine.sets_held for engine in self.engines]


@asynccontextmanager
async def running(live: Revision = OLD, within: float | None = 60) -> AsyncIterator[Slice]:
    made = Slice(live)
    async with AsyncExitStack() as ended, asyncio.timeout(within):
        for rank in (1, 2):
            following = Following(made.engines[rank], made.prepare)
            task = asyncio.create_task(Follower(made.store, rank).follow(following))
            ended.push_async_callback(gone, task)
        yield made


async def gone(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
