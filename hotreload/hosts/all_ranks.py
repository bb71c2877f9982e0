"""Rank 0's side of the steps: each change of its part of the engine is made on all ranks.

A step is done everywhere or nowhere: the error names each rank that objects. If rank 0 did the
step and it is unknown whether the others did it, the engine is lost.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.hosts.steps import DROP, AfterFailure, OwnPart, StepKind, StepSeconds, in_step
from hotreload.hosts.vote import Ballot, Chair, Step
from hotreload.threads import cancel_all, give_up, run_to_end
from hotreload.types import Staged

type Work[T] = Callable[[], Coroutine[Any, Any, T]]


class AllRanks:
    """Rank 0's own part of the engine, and the chair that calls the steps of the others."""

    def __init__(self, own: OwnPart, chair: Chair, seconds: StepSeconds) -> None:
        self.seconds = seconds
        self._own = own
        self._chair = chair
        self._taking = asyncio.Lock()

    @asynccontextmanager
    async def step(
        self, kind: StepKind, about: Mapping[str, str] | None = None
    ) -> AsyncIterator["RunningStep"]:
        """Begin a step on all others and hold it; a second step waits until this one has ended."""
        async with self._taking:
            step = await self._begin(kind, about or {})
            with in_step(step.number):
                yield RunningStep(self, self._own, kind, step)

    async def _begin(self, kind: StepKind, about: Mapping[str, str]) -> Step:
        """Begin a step; after a cancel the others, which may have begun it, give it up."""
        calling = asyncio.ensure_future(self._chair.call(kind.name, about))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await run_to_end(self._give_up_when_called(calling))
            raise

    async def _give_up_when_called(self, calling: asyncio.Future[Step]) -> None:
        await self.give_up(await calling)

    async def collect_votes(self, kind: StepKind, step: Step) -> list[Ballot]:
        """Return the others' votes; EngineLost as soon as this rank's part is lost."""
        within = kind.within(self.seconds)
        votes = asyncio.create_task(self._chair.collect_votes(step, within))
        lost = asyncio.create_task(self._own.wait_until_dead())
        try:
            await asyncio.wait({votes, lost}, return_when=FIRST_COMPLETED)
            if not votes.done():
                await lost
            return votes.result()
        finally:
            await run_to_end(cancel_all(votes, lost))

    async def give_up(self, step: Step) -> None:
        """Have the others give a step up, and free the weights that they made in it."""
        self._own.withdraw(step.number)  # a rank may wait for it in a job, which no cancel ends
        dropping = await self._chair.call(DROP.name, {"set": str(step.number)})
        with suppress(TryAgain, CheckpointRejected):  # the caller reports the first error
            await self.collect_votes(DROP, dropping)


class RunningStep:
    """A step that all others have been sent; made by `AllRanks.step`."""

    def __init__(self, ranks: AllRanks, own: OwnPart, kind: StepKind, step: Step) -> None:
        self.number = step.number
        self._ranks = ranks
        self._own = own
        self._kind = kind
        self._step = step

    async def collect_votes(self) -> list[Ballot]:
        """Return the votes of all others on this step; raise the gravest objection."""
        return await self._ranks.collect_votes(self._kind, self._step)

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
                words = f"rank 0 did {self._kind.name}, but {str(fault) or 'was told to stop'}"
                self._own.lose(words)
                raise EngineLost(words) from fault
            if self._kind.after_failure is not AfterFailure.STAYS:
                await run_to_end(self.give_up())
            raise

    async def give_up(self) -> None:
        """Have the others free the weights that they made in this step."""
        await self._ranks.give_up(self._step)

    def _is_irrevocable(self, staged: Staged | None) -> bool:
        is_done = staged is not None and self._own.weights.live is staged
        return is_done and self._kind.after_failure is AfterFailure.DROPPED_OR_LOST

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
