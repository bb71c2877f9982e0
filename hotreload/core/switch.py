"""The half of an attempt that is done on one engine: stage, prove, go live, or leave it as it was.

There are two ways, of one shape. `overlap` proves new weights beside those that answer, and flips:
nobody waits. `drain` empties the engine first, for one that answers by one set of weights alone.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from hotreload.core.course import Course, StillWanted
from hotreload.core.how_far import telling_how_far
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.core.rules import Rules
from hotreload.errors import CheckpointRejected, EngineLost, ProbeFailed, TryAgain
from hotreload.types import Checkpoint, Generation, HowFar, Noise, Phase, Staged

ABORT_GRACE = 5.0
"""How long aborted generations may take to leave; one decode step is plenty."""

Make = Callable[[], Awaitable[Staged]]
"""Have the engine make new weights beside the live ones."""
Commit = Callable[["Switch", Staged], Generation]
"""Record in memory that an engine answers by these weights, and say as which generation."""
Remember = Callable[[], Awaitable[str | None]]
"""Make what is recorded survive a restart, or say why it does not."""


@dataclass(frozen=True, slots=True)
class Ready:
    """New weights beside the live ones of one engine; freed at the end unless they went live."""

    weights: Staged
    prove: Callable[[], Awaitable[None]]
    """Have the probes asked where that disturbs nobody; bad answers raise why."""
    go: Callable[[], Awaitable[None]]
    """Have them go live, or raise why not: then what answered before answers still."""


class Switch(ABC):
    """Makes other weights live on one engine, or leaves it as it was."""

    def __init__(
        self,
        replica: Replica[Engine],
        course: Course,
        wanted: StillWanted,
        *,
        commit: Commit,
        remember: Remember,
        rules: Rules,
    ) -> None:
        self.replica = replica
        self._engine = replica.engine
        self._course = course
        self._wanted = wanted
        self._commit = commit
        self._remember = remember
        self._rules = rules
        self.is_staged = False
        """Whether little is left to do, so that a newer wish waits."""

    @property
    def serves(self) -> bool:
        """Whether the engine is still there; one that is lost answers nobody."""
        return not self.replica.gate.is_lost

    def insist(self) -> None:
        """From now on wait as long as any request may run, and abort what runs longer."""
        patience = max(self._rules.drain_timeout, self._rules.longest_drain)
        self._rules = replace(self._rules, drain_timeout=patience, abort_on_drain_timeout=True)

    def stage(self, checkpoint: Checkpoint) -> Make:
        """Make the weights of a checked checkpoint."""
        return partial(self._engine.stage, checkpoint)

    def copy(self, twin: Staged) -> Make:
        """Make the same weights as another engine has."""
        return partial(self._engine.twin, twin)

    def perturb(self, noise: Noise) -> Make:
        """Make a copy of the live weights with noise on it."""
        return partial(self._engine.perturb, self._course.revision, noise)

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._engine.live

    @asynccontextmanager
    async def ready(self, make: Make, *, asked: bool = True) -> AsyncIterator[Ready]:
        """Make new weights, and prove them where that disturbs nobody; bad ones raise why.

        Without being asked the probes they go live whatever they answer.
        """
        async with self.held(make, asked=asked) as ready:
            if asked:
                self._wanted.check()  # the last cheap exit
                self.is_staged = True
                await ready.prove()
            yield ready

    @abstractmethod
    def held(self, make: Make, *, asked: bool = True) -> AbstractAsyncContextManager[Ready]:
        """Make new weights and hold them, for who says himself when they are proven, and go live.

        Where only live weights can be proven, `asked` says whether they are, before they stay.
        """

    @abstractmethod
    async def back(self, place: PastGeneration, *, asked: bool = True) -> bool:
        """Make an earlier generation live again; False when it is not in memory any more.

        Without being asked the probes it does whatever it answers.
        """

    async def rehearse(self, checkpoint: Checkpoint) -> None:
        """Do all that is done before anything goes live: stage, and prove where nobody sees it."""
        self._rules = replace(self._rules, abort_on_drain_timeout=False)  # nobody is cut off for it
        async with self.held(self.stage(checkpoint)) as ready:
            self._wanted.check()
            why_not = self._engine.cannot_overlap
            if why_not is not None:
                self._course.unproven = why_not
                return
            await self._proven(ready.weights)

    async def _proven(self, staged: Staged) -> None:
        """Ask the probes where nobody sees the answers, for as long as the weights are wanted."""
        with self.replica.sealed_when_lost():
            await self._wanted.during(self._judged(staged))

    async def _judged(self, staged: Staged) -> None:
        """Ask them; bad answers cost nobody anything."""
        try:
            await self._probed(partial(self._engine.prove, staged))
        except (EngineLost, TryAgain):  # no room for the shadow says nothing about the weights
            raise
        except Exception as bad:
            self._course.verdict = as_verdict(bad)
            raise self._course.verdict from bad

    async def _stage(self, make: Make) -> Staged:
        """Make new weights beside the live ones, for as long as they are wanted."""
        self._course.replica = self.replica.index
        async with (
            self._course.phase(Phase.STAGING, self._rules.stage_timeout, "stage_timeout"),
            telling_how_far(self._how_far, self._course.revision, self._course.publish),
        ):
            staged = await self._wanted.during(make(), self._engine.release)
        self._course.loading = staged.loading or self._course.loading  # a copy was not loaded
        self.replica.staged = staged
        # What is not made of a checkpoint is copied whole.
        self.replica.staged_bytes += staged.loading.bytes_read if staged.loading else staged.bytes
        return staged

    def _how_far(self) -> HowFar | None:
        return self._engine.staging

    async def _probed(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask the probes; no answer in time is a bad one."""
        try:
            async with (
                asyncio.timeout(self._rules.probe_timeout),
                self._course.phase(Phase.PROBING),
            ):
                await ask()
        except TimeoutError:
            raise ProbeFailed(
                f"no answer to the probe within {self._rules.probe_timeout:g} s "
                "([reload] probe_timeout)"
            ) from None

    def _recorded(self, fresh: Staged, old: Staged) -> Generation:
        """Record that `fresh` answers instead of `old`, and say which generation it is now."""
        self._course.fingerprints = (old.fingerprint, fresh.fingerprint)
        return self._commit(self, fresh)


def as_verdict(bad: Exception) -> CheckpointRejected:
    """Why the weights are rejected; a probe that breaks in any way is a bad answer."""
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")
