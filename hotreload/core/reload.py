"""One attempt, top to bottom: prepare a checkpoint, then switch to it, unless it is bad.

`Prepare` fetches and checks, and needs no engine. A `Rollout` does one `Switch` after the other,
which stages, proves and goes live, on one engine: beside what answers (`overlap`), or while nobody
is answered (`drain`). Read prepare.py, rollout.py and one of these two to know the whole.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hotreload.core.course import Course, StillWanted
from hotreload.core.ledger import PastGeneration
from hotreload.core.prepare import Prepare
from hotreload.core.rollout import Rollout
from hotreload.types import Noise, Revision


class Reload:
    """One attempt to make other weights live; made anew for each."""

    def __init__(
        self,
        course: Course,
        wanted: StillWanted,
        *,
        prepare: Prepare,
        changing: asyncio.Lock,
        rollout: Callable[[], Rollout],
    ) -> None:
        """`changing` is held while engines change, by whoever changes them."""
        self.course = course
        self._wanted = wanted
        self._prepare = prepare
        self._changing = changing
        self._make_rollout = rollout
        self._rollout: Rollout | None = None

    async def run(self, still_wanted: Callable[[], bool]) -> None:
        """Make the revision live, or raise why not; then what answered before answers still."""
        self._wanted.ask(still_wanted)
        checkpoint = await self._prepare.run()
        async with self._alone() as rollout:
            await rollout.to(checkpoint)

    async def run_dry(self, still_wanted: Callable[[], bool]) -> None:
        """Do what `run` does until before anything goes live, or raise why it would not."""
        self._wanted.ask(still_wanted)
        checkpoint = await self._prepare.run()
        async with self._alone() as rollout:
            await rollout.rehearse(checkpoint)

    async def run_back(self, place: PastGeneration) -> bool:
        """Make an earlier generation live again without loading; False when it is not kept."""
        async with self._alone() as rollout:
            return await rollout.back(place)

    async def run_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers."""
        async with self._alone() as rollout:
            await rollout.to_noise(noise)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Rollout]:
        """Have the engines that serve now to oneself: none joins, and none is closed meanwhile."""
        async with self._changing:
            self._rollout = self._make_rollout()
            yield self._rollout

    @property
    def revision(self) -> Revision:
        """The revision that the attempt is to make live."""
        return self.course.revision

    @property
    def may_give_up(self) -> bool:
        """Whether it can still be given up; the live weights are untouched until then."""
        return self._wanted.may_give_up

    @property
    def is_staged(self) -> bool:
        """Whether little is left to do, so that a newer wish waits."""
        return self._rollout is not None and self._rollout.is_staged
