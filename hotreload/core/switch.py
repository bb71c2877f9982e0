"""The half of an attempt that is done on one engine: stage, prove, go live, or leave it as it was.

There are two ways, of one shape. `overlap` proves new weights beside those that answer, and flips:
nobody waits. `drain` empties the engine first, for one that answers by one set of weights alone.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

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

Commit = Callable[[Staged, Path | None], Generation]
"""Record in memory that these weights are live, and return the generation they are now."""
Remember = Callable[[], Awaitable[str | None]]
"""Make what is recorded survive a restart, or say why it does not."""


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
        self._replica = replica
        self._engine = replica.engine
        self._course = course
        course.replica = replica.index
        self._wanted = wanted
        self._commit = commit
        self._remember = remember
        self._rules = rules
        self.is_staged = False
        """Whether little is left to do, so that a newer wish waits."""

    @abstractmethod
    async def to(self, checkpoint: Checkpoint) -> None:
        """Make a checked checkpoint live, unless its answers are bad."""

    @abstractmethod
    async def back(self, place: PastGeneration) -> bool:
        """Make an earlier generation live again; False when it is not in memory any more."""

    @abstractmethod
    async def to_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers.

        It shows that a swap moves the checksums. A probe would forbid that as often as not, and
        what noisy weights answer tells nothing.
        """

    @abstractmethod
    def _beside(self, checkpoint: Checkpoint) -> AbstractAsyncContextManager[Staged]:
        """Hold a checkpoint's weights beside the live ones, and free them at the end."""

    async def rehearse(self, checkpoint: Checkpoint) -> None:
        """Do all that is done before anything goes live: stage, and prove where nobody sees it."""
        self._rules = replace(self._rules, abort_on_drain_timeout=False)  # nobody is cut off for it
        async with self._beside(checkpoint) as staged:
            self._wanted.check()
            why_not = self._engine.cannot_overlap
            if why_not is not None:
                self._course.unproven = why_not
                return
            with self._replica.sealed_when_lost():
                await self._wanted.during(self._proven(staged))

    async def _proven(self, staged: Staged) -> None:
        """Ask the probes where nobody sees the answers; bad ones cost nobody anything."""
        try:
            await self._probed(partial(self._engine.prove, staged))
        except (EngineLost, TryAgain):  # no room for the shadow says nothing about the weights
            raise
        except Exception as bad:
            self._course.verdict = as_verdict(bad)
            raise self._course.verdict from bad

    async def _stage(self, make: Callable[[], Awaitable[Staged]]) -> Staged:
        """Make new weights beside the live ones, for as long as they are wanted."""
        async with (
            self._course.phase(Phase.STAGING, self._rules.stage_timeout, "stage_timeout"),
            telling_how_far(self._how_far, self._course.revision, self._course.publish),
        ):
            staged = await self._wanted.during(make(), self._engine.release)
        self._course.loading = staged.loading
        self._replica.staged = staged
        # What is not made of a checkpoint is copied whole.
        self._replica.staged_bytes += staged.loading.bytes_read if staged.loading else staged.bytes
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

    def _recorded(self, fresh: Staged, old: Staged, path: Path | None) -> Generation:
        """Record that `fresh` answers instead of `old`, and say which generation it is now."""
        generation = self._commit(fresh, path)
        self._course.fingerprints = (old.fingerprint, fresh.fingerprint)
        self._course.generation = generation
        return generation


def as_verdict(bad: Exception) -> CheckpointRejected:
    """Why the weights are rejected; a probe that breaks in any way is a bad answer."""
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")
