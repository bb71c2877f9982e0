"""The engine of several ranks as the core knows one: what rank 0 does to its own, all do.

A step is done everywhere or nowhere: whoever is against it is named. One that was done here and
nobody knows whether elsewhere, too, loses the engine.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from hotreload.errors import (
    CheckpointIncompatible,
    CheckpointRejected,
    EngineLost,
    HotReloadError,
    TryAgain,
)
from hotreload.hosts.ballots import Ballot, Step, check_same
from hotreload.hosts.following import FIRST, OwnPart
from hotreload.hosts.steps import in_step
from hotreload.hosts.vote import Chair
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, HowFar, Noise, Revision, Staged

type Work[T] = Callable[[], Coroutine[Any, Any, T]]


STEP_SECONDS = 60.0
"""How long the slowest rank may take for a step that computes and loads nothing."""


class OverRanks:
    """Rank 0's own part of the engine, and the chair that takes the others along."""

    def __init__(
        self,
        own: OwnPart,
        chair: Chair,
        *,
        stage_within: float,
        prove_within: float,
        within: float = STEP_SECONDS,
    ) -> None:
        """How long others may take to stage, to compute the probes, and for any other step."""
        self._own = own
        self._chair = chair
        self._stage_within = stage_within
        self._prove_within = prove_within
        self._within = within
        self._names: dict[Any, str] = {own.live.weights: FIRST}
        """How the ranks call each set of weights."""
        self._taking = asyncio.Lock()

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._own.live

    @property
    def cannot_overlap(self) -> str | None:
        """Why two sets of weights cannot answer side by side in it; None when they can."""
        return self._own.cannot_overlap

    @property
    def spares_wait_on_host(self) -> bool:
        """They wait beside the live ones, on every rank."""
        return False

    @property
    def staging(self) -> HowFar | None:
        """How far this rank is with a checkpoint; None while it is with none."""
        return self._own.staging

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Have every rank load its share; what they load has one fingerprint."""
        revision = checkpoint.revision
        about = {"revision": revision.id, "label": revision.label}
        async with self._step("stage", about) as step:
            work, free = partial(self._own.stage, checkpoint), self._own.release
            try:
                staged, ballots = await self._together(step, work, self._stage_within, free)
            except BaseException:
                await uninterrupted(self._give_up(step))
                raise
            await self._check_same(step, staged, ballots)
            self._names[staged.weights] = str(step.number)
            return staged

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts; every rank computes the answers."""
        async with self._step("prove", self._called(staged)) as step:
            try:
                await self._together(step, partial(self._own.prove, staged), self._prove_within)
            except BaseException:
                await uninterrupted(self._give_up(step))
                raise

    async def flip(self, staged: Staged) -> Staged:
        """Have `staged` answer new requests from one turn of all ranks on."""
        return await self._change("flip", staged, partial(self._own.flip, staged))

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live on all ranks in one turn, and return what was live."""
        return await self._change("exchange", staged, partial(self._own.exchange, staged))

    async def scrub(self) -> None:
        """Overwrite all that failed weights computed, on every rank."""
        await self._change("scrub", None, self._own.scrub)

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under weights that nobody holds a lease on any more."""
        async with self._step("retire", self._called(staged)) as step:
            await self._all_did(step, self._within)
            # Others may take their steps meanwhile.
            ending = asyncio.create_task(self._own.retire(staged))
        try:
            await ending
        finally:
            ending.cancel()

    async def release(self, staged: Staged) -> None:
        """Free spare weights on every rank."""
        async with self._step("release", self._called(staged)) as step:
            self._names.pop(staged.weights)
            await self._together(step, partial(self._own.release, staged), self._within)

    async def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, computed on what is live now on every rank."""
        async with self._step("measure", {}) as step:
            try:
                found, _ = await self._together(step, self._own.checksums, self._within)
            except BaseException:
                await uninterrupted(self._give_up(step))
                raise
            return found

    async def tell(self, name: str, about: Mapping[str, str]) -> None:
        """Have every other rank do what this one has done by itself."""
        async with self._step(name, about) as step:
            await self._all_did(step, self._within)

    # --- what rank 0 does alone: the others compute what it asks ----------------------------------

    async def probe(self) -> None:
        """Ask the live weights the canary prompts."""
        await self._own.probe()

    async def withheld(self, beyond: int) -> int:
        """Wait until more answers than these were withheld as no numbers; how many."""
        return await self._own.withheld(beyond)

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way (under these weights)."""
        await self._own.abort(staged)

    def lose(self, why: str) -> None:
        """Count it as lost: whoever waits for it hears EngineLost."""
        self._own.lose(why)

    # --- what an engine over several hosts cannot -------------------------------------------------

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Refuse it."""
        raise _cannot("put noise on its weights")

    async def twin(self, staged: Staged) -> Staged:
        """Refuse it."""
        raise _cannot("copy another engine's weights")

    async def stow(self, staged: Staged) -> Staged:
        """Refuse it."""
        raise _cannot("keep weights in host memory")

    async def unstow(self, staged: Staged) -> Staged:
        """They are where spare ones wait: none was ever stowed."""
        return staged

    def _called(self, staged: Staged) -> Mapping[str, str]:
        return {"set": self._names[staged.weights]}

    # --- steps ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _step(self, name: str, about: Mapping[str, str]) -> AsyncIterator[Step]:
        """One step at a time: the next one ends it on ranks that still are at it."""
        async with self._taking:
            step = await self._begun(name, about)
            with in_step(step.number):
                yield step

    async def _begun(self, name: str, about: Mapping[str, str]) -> Step:
        """Others may have begun it though this was cancelled: they are told that it is given up."""
        calling = asyncio.ensure_future(self._chair.call(name, about))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await uninterrupted(self._not_begun_here(calling))
            raise

    async def _not_begun_here(self, calling: asyncio.Future[Step]) -> None:
        await self._give_up(await calling)

    async def _all_did(self, step: Step, within: float) -> list[Ballot]:
        """What the others say; EngineLost as soon as the part here is lost: they say no more."""
        hearing = asyncio.create_task(self._chair.all_did(step, within))
        lost = asyncio.create_task(self._own.died())
        try:
            await asyncio.wait({hearing, lost}, return_when=FIRST_COMPLETED)
            if not hearing.done():
                await lost
            return hearing.result()
        finally:
            await uninterrupted(_ended(hearing, lost))

    async def _together[T](
        self,
        step: Step,
        work: Work[T],
        within: float,
        free: Callable[[T], Awaitable[None]] | None = None,
    ) -> tuple[T, list[Ballot]]:
        """Do it here while the others do it; the first that is against it ends it here, too."""
        own = asyncio.create_task(work())
        others = asyncio.create_task(self._all_did(step, within))
        try:
            await asyncio.wait({own, others}, return_when=FIRST_COMPLETED)
            if others.done():
                others.result()
            made = await own
            return made, await others
        except BaseException:
            await uninterrupted(_given_up(own, others, free))
            raise
        finally:
            del own  # as in `threads`: its error holds this frame

    async def _change[T](self, name: str, staged: Staged | None, work: Work[T]) -> T:
        """Do what cannot be given up once it is done; it is done on all ranks in one turn."""
        about = {} if staged is None else self._called(staged)
        async with self._step(name, about) as step:
            try:
                made, _ = await self._together(step, work, self._within)
            except BaseException as fault:
                if staged is not None and self._own.live is staged:
                    lost = EngineLost(f"rank 0 did {name}, but {fault or 'was told to stop'}")
                    self._own.lose(str(lost))
                    raise lost from fault
                await uninterrupted(self._give_up(step))
                raise
            return made

    async def _give_up(self, step: Step) -> None:
        """Have others that are still at a step give it up, and free what they made in it."""
        self._own.withdraw(step.number)  # some wait for it who cannot be cancelled
        dropping = await self._chair.call("drop", {"set": str(step.number)})
        with suppress(TryAgain, CheckpointRejected):  # what went wrong before is what is told
            await self._all_did(dropping, self._within)

    async def _check_same(self, step: Step, staged: Staged, ballots: list[Ballot]) -> None:
        try:
            check_same(ballots, "fingerprint", staged.fingerprint)
        except HotReloadError:
            await uninterrupted(_all_of(self._own.release(staged), self._give_up(step)))
            raise


def _cannot(do: str) -> CheckpointIncompatible:
    return CheckpointIncompatible(f"an engine over several hosts ([engine] nnodes) cannot {do}")


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _all_of(*works: Awaitable[None]) -> None:
    for work in works:
        await work


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
