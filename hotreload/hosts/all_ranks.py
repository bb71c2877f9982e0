"""Rank 0's side of the steps: each change of its part of the engine is made on all ranks.

A step is done everywhere or nowhere: the error names each rank that objects. If rank 0 did the
step and it is unknown whether the others did it, the engine is lost.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.hosts.steps import DROP, AfterFailure, OwnPart, StepKind, StepSeconds, in_step
from hotreload.hosts.vote import Ballot, Chair, Step
from hotreload.threads import cancel_all, give_up, run_to_end
from hotreload.types import Staged

type Work[T] = Callable[[], Coroutine[Any, Any, T]]


@dataclass(eq=False)
class AllRanks:
    """Rank 0's own part of the engine, and the chair that calls the steps of the others."""

    own: OwnPart
    chair: Chair
    seconds: StepSeconds
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a step."""

    @asynccontextmanager
    async def step(
        self, kind: StepKind, about: Mapping[str, str] | None = None
    ) -> AsyncIterator["RunningStep"]:
        """Begin a step on all others and hold it; a second step waits until this one has ended."""
        async with self.taking:
            step = await self._begin(kind, about or {})
            with in_step(step.number):
                yield step

    async def _begin(self, kind: StepKind, about: Mapping[str, str]) -> "RunningStep":
        """Begin a step; after a cancel the others, which may have begun it, give it up."""
        calling = asyncio.ensure_future(self.call(kind, about))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await run_to_end(self._give_up_when_called(calling))
            raise

    async def call(self, kind: StepKind, about: Mapping[str, str]) -> "RunningStep":
        """Send a step to all others; it ends the step that they are at."""
        return RunningStep(self, kind, await self.chair.call(kind.name, about))

    async def _give_up_when_called(self, calling: "asyncio.Future[RunningStep]") -> None:
        await (await calling).give_up()


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A step that all others have been sent; made by `AllRanks.call`."""

    ranks: AllRanks
    kind: StepKind
    step: Step

    @property
    def number(self) -> int:
        """The step's number."""
        return self.step.number

    async def collect_votes(self) -> list[Ballot]:
        """Return the votes of all others on this step; raise the gravest objection.

        EngineLost as soon as this rank's part is lost.
        """
        within = self.kind.within(self.ranks.seconds)
        votes = asyncio.create_task(self.ranks.chair.collect_votes(self.step, within))
        lost = asyncio.create_task(self.ranks.own.wait_until_dead())
        try:
            await asyncio.wait({votes, lost}, return_when=FIRST_COMPLETED)
            if not votes.done():
                await lost
            return votes.result()
        finally:
            await run_to_end(cancel_all(votes, lost))

    async def give_up(self) -> None:
        """Have the others give the step up, and free the weights that they made in it."""
        # A rank may wait for it in a job, which no cancel ends.
        self.ranks.own.withdraw(self.number)
        dropping = await self.ranks.call(DROP, {"set": str(self.number)})
        with suppress(TryAgain, CheckpointRejected):  # the caller reports the first error
            await dropping.collect_votes()

    async def do_everywhere[T](
        self,
        work: Work[T],
        staged: Staged | None = None,
        free: Callable[[T], Awaitable[None]] | None = None,
    ) -> tuple[T, list[Ballot]]:
        """Do the work here while the others do theirs; return its result and their votes.

        `staged` are the weights that the step makes live, if any. If a rank objects, `free` frees
        the result.
        """
        try:
            return await self._do_beside_others(work, free)
        except BaseException as fault:
            if self._is_irrevocable(staged):
                words = f"rank 0 did {self.kind.name}, but {str(fault) or 'was told to stop'}"
                self.ranks.own.lose(words)
                raise EngineLost(words) from fault
            if self.kind.after_failure is not AfterFailure.STAYS:
                await run_to_end(self.give_up())
            raise

    def _is_irrevocable(self, staged: Staged | None) -> bool:
        is_done = staged is not None and self.ranks.own.weights.live is staged
        return is_done and self.kind.after_failure is AfterFailure.DROPPED_OR_LOST

    async def _do_beside_others[T](
        self, work: Work[T], free: Callable[[T], Awaitable[None]] | None
    ) -> tuple[T, list[Ballot]]:
        """Do the work while the others do theirs; the first objection ends it here, too."""
        own = asyncio.create_task(work())
        others = asyncio.create_task(self.collect_votes())
        try:
            await asyncio.wait({own, others}, return_when=FIRST_COMPLETED)
            if others.done():
                others.result()
            made = await own
            return made, await others
        except BaseException:
            await run_to_end(give_up(own, free, others))
            raise
        finally:
            del own  # as in `threads`: its error holds this frame
