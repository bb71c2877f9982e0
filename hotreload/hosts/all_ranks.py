"""Rank 0's side of the steps: each change of its part of the engine is made on all ranks.

A step is done everywhere or nowhere: a rank that objects is named. A step that was done here, and
of which it is unknown whether the others did it, loses the engine.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.hosts.steps import DROP, InVain, OwnPart, StepKind, StepSeconds, in_step
from hotreload.hosts.vote import Ballot, Chair, Step
from hotreload.threads import run_to_end
from hotreload.types import Staged

type Work[T] = Callable[[], Coroutine[Any, Any, T]]


class AllRanks:
    """Rank 0's own part of the engine, and the chair that takes the others along."""

    def __init__(self, own: OwnPart, chair: Chair, seconds: StepSeconds) -> None:
        self.seconds = seconds
        self._own = own
        self._chair = chair
        self._taking = asyncio.Lock()

    @asynccontextmanager
    async def step(
        self, kind: StepKind, about: Mapping[str, str] | None = None
    ) -> AsyncIterator["BegunStep"]:
        """One step at a time: the next one ends it on ranks that still are at it."""
        async with self._taking:
            step = await self._begin(kind, about or {})
            with in_step(step.number):
                yield BegunStep(self, self._own, kind, step)

    async def _begin(self, kind: StepKind, about: Mapping[str, str]) -> Step:
        """Begin a step; after a cancel, the others are sent that it is given up: they may have
        begun it."""
        calling = asyncio.ensure_future(self._chair.call(kind.name, about))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await run_to_end(self._not_begun_here(calling))
            raise

    async def _not_begun_here(self, calling: asyncio.Future[Step]) -> None:
        await self.give_up(await calling)

    async def others_did(self, kind: StepKind, step: Step) -> list[Ballot]:
        """Receive the others' votes; EngineLost as soon as this rank's part is lost: none come
        then."""
        within = kind.within(self.seconds)
        hearing = asyncio.create_task(self._chair.all_did(step, within))
        lost = asyncio.create_task(self._own.wait_until_dead())
        try:
            await asyncio.wait({hearing, lost}, return_when=FIRST_COMPLETED)
            if not hearing.done():
                await lost
            return hearing.result()
        finally:
            await run_to_end(_cancel(hearing, lost))

    async def give_up(self, step: Step) -> None:
        """Have others that are still at a step give it up, and free what they made in it."""
        self._own.withdraw(step.number)  # some wait for it who cannot be cancelled
        dropping = await self._chair.call(DROP.name, {"set": str(step.number)})
        with suppress(TryAgain, CheckpointRejected):  # what went wrong before is what is told
            await self.others_did(DROP, dropping)


class BegunStep:
    """A step that all others have begun; `AllRanks.step` makes it."""

    def __init__(self, ranks: AllRanks, own: OwnPart, kind: StepKind, step: Step) -> None:
        self.number = step.number
        self._ranks = ranks
        self._own = own
        self._kind = kind
        self._step = step

    async def others_did(self) -> list[Ballot]:
        """Receive the votes of all ranks that have done the step; raise the gravest objection."""
        return await self._ranks.others_did(self._kind, self._step)

    async def all_did[T](
        self,
        work: Work[T],
        staged: Staged | None = None,
        free: Callable[[T], Awaitable[None]] | None = None,
    ) -> tuple[T, list[Ballot]]:
        """Do the work here while the others do theirs; what it made, and what they say.

        `staged` is what the step makes live, if it does; `free` puts away what was made here when
        one of them is against it.
        """
        try:
            return await self._together(work, free)
        except BaseException as fault:
            if self._is_past_undoing(staged):
                words = f"rank 0 did {self._kind.name}, but {str(fault) or 'was told to stop'}"
                self._own.lose(words)
                raise EngineLost(words) from fault
            if self._kind.in_vain is not InVain.STAYS:
                await run_to_end(self.give_up())
            raise

    async def give_up(self) -> None:
        """Have the others free what they made in it."""
        await self._ranks.give_up(self._step)

    def _is_past_undoing(self, staged: Staged | None) -> bool:
        is_done = staged is not None and self._own.live is staged
        return is_done and self._kind.in_vain is InVain.DROPPED_OR_LOST

    async def _together[T](
        self, work: Work[T], free: Callable[[T], Awaitable[None]] | None
    ) -> tuple[T, list[Ballot]]:
        """Do it here while the others do it; the first that is against it ends it here, too."""
        own = asyncio.create_task(work())
        others = asyncio.create_task(self.others_did())
        try:
            await asyncio.wait({own, others}, return_when=FIRST_COMPLETED)
            if others.done():
                others.result()
            made = await own
            return made, await others
        except BaseException:
            await run_to_end(_given_up(own, others, free))
            raise
        finally:
            del own  # as in `threads`: its error holds this frame


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _given_up[T](
    own: asyncio.Task[T],
    others: asyncio.Task[list[Ballot]],
    free: Callable[[T], Awaitable[None]] | None,
) -> None:
    own.cancel()
    others.cancel()
    await asyncio.wait({own, others})
    if free is not None and not own.cancelled() and own.exception() is None:
        await free(own.result())
