"""A follower: a rank that decides nothing, and does each step to its own part of the engine."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn, Protocol

from hotreload import failpoints
from hotreload.core.ports import Engine
from hotreload.errors import EngineLost
from hotreload.hosts.ballots import Step
from hotreload.hosts.bounds import revision_of
from hotreload.types import Checkpoint, Revision, Staged

FIRST = "first"
"""The ranks' name for the weights they started with."""

About = Mapping[str, str]


class OwnPart(Engine, Protocol):
    """One rank's part of an engine: all ranks are asked the same of theirs."""

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each leaf that is live, of which every rank measures its own."""
        ...

    async def died(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that it died or hangs."""
        ...

    def withdraw(self, step: int) -> None:
        """Let no rank wait any more to do its part of this step; rank 0 alone asks."""
        ...


class Following[Own: OwnPart](ABC):
    """A rank that follows; the sets of weights have the names that rank 0 gives them.

    What it does without an engine belongs to the life of a daemon: `hosts.life.follow` has it.
    """

    def __init__(self) -> None:
        self._own: Own | None = None
        self._sets: dict[str, Staged] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def take_over(self, own: Own) -> None:
        """Follow with this part of the engine from now on."""
        self._own, self._sets = own, {FIRST: own.live}

    @property
    def own(self) -> Own:
        """This rank's part of the engine."""
        assert self._own is not None, "it is built before anything else is asked of it"
        return self._own

    def set_of(self, step: Step) -> Staged:
        """The set that a step is about."""
        return self._sets[step.about["set"]]

    async def load(self, step: Step) -> About:
        """Load this rank's share of the revision, which it prepares by itself."""
        checkpoint = await self.prepare(revision_of(step.about))
        staged = self._sets[str(step.number)] = await self.own.stage(checkpoint)
        return {"fingerprint": staged.fingerprint}

    async def let_end(self, step: Step) -> None:
        """Rank 0 waits for the end, which comes to all in one turn; steps follow meanwhile."""
        retiring = self.own.retire(self.set_of(step))
        self._ending[step.about["set"]] = asyncio.create_task(retiring)

    async def free(self, step: Step) -> None:
        """Free the set, once nobody is answered by it any more."""
        name = step.about["set"]
        if name in self._ending:
            # The next step may end this one: what ends goes on, and can be waited for again.
            await asyncio.shield(self._ending[name])
            del self._ending[name]
        await self.own.release(self._sets[name])
        del self._sets[name]

    async def drop(self, step: Step) -> None:
        """Free what was made in a step that was given up; being done, it ended when this came."""
        staged = self._sets.pop(step.about["set"], None)
        if staged is None:
            return
        if staged is self.own.live:
            raise EngineLost("rank 0 gave up what is live here")
        await self.own.release(staged)

    async def reach(self, point: str) -> None:
        """Pass this failpoint of an attempt."""
        await failpoints.reach(point)

    @abstractmethod
    async def prepare(self, revision: Revision) -> Checkpoint:
        """Fetch a revision and check it, on this host."""

    @abstractmethod
    async def introduce(self) -> About:
        """Say what must be alike on all ranks, before anything is built."""

    @abstractmethod
    async def prepare_start(self, about: About) -> None:
        """Fetch and check what the engine is to be built from."""

    @abstractmethod
    async def build(self) -> None:
        """Build this rank's part of the engine, while the others build theirs."""

    @abstractmethod
    async def record(self, about: About) -> None:
        """Write down what is live on all ranks now."""
