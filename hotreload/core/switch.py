"""The steps of an attempt on one engine: stage weights, prove them, flip, keep or free the spare.

There are two orders. `overlap` proves new weights beside the live ones, and flips: no request
waits. `drain` empties the engine first, for engines that answer by one set of weights alone.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from hotreload.core.engines.replica import Replica
from hotreload.core.judge import (
    ASKED,
    PASSED,
    Case,
    Judge,
    OnceLive,
    as_verdict,
    ask_judge,
    limit_probes,
    probe_evidence,
)
from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress, WantedCheck, publish_progress
from hotreload.core.rules import Rules
from hotreload.errors import EngineLost, TryAgain
from hotreload.types import Generation, Mode, Phase, Staged

log = logging.getLogger("hotreload.reload")

ABORT_GRACE = 5.0
"""Time in which aborted generations must leave; one decode step is plenty."""

MakeWeights = Callable[[Engine], Awaitable[Staged]]
"""Make new weights on an engine beside the live ones."""
Remember = Callable[[], Awaitable[str | None]]
"""Save the ledger for a restart, or return why that failed."""


@dataclass(eq=False)
class Switch(ABC):
    """Makes other weights live on one engine, or leaves it as it was; one for each attempt.

    Call `prove` within `keep_staged`, and then, within `lock_engine`, `flip` and `answer_as` with
    no cancel between. A rollback uses `keep_earlier` in the place of both.
    """

    replica: Replica[Engine]
    progress: AttemptProgress
    wanted: WantedCheck
    remember: Remember
    rules: Rules

    @property
    def engine(self) -> Engine:
        """The engine whose weights change."""
        return self.replica.engine

    @property
    def serves(self) -> bool:
        """True while the engine is not lost."""
        return not self.replica.gate.is_lost

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self.engine.weights.live

    def drain_as_long_as_requests_may_run(self) -> None:
        """Wait from now on as long as any request may run, and abort those that run longer."""
        patience = max(self.rules.drain_timeout, self.rules.longest_drain)
        self.rules = replace(self.rules, drain_timeout=patience, on_drain_timeout="abort")

    # --- the steps -------------------------------------------------------------------------

    @abstractmethod
    def keep_staged(self, make: MakeWeights) -> AbstractAsyncContextManager[Staged]:
        """Make new weights beside the live ones and yield them; at the end keep or free the set."""

    @abstractmethod
    async def prove(self, staged: Staged) -> None:
        """Ask the probes where no request is disturbed; bad answers raise why."""

    @abstractmethod
    def lock_engine(self) -> AbstractAsyncContextManager[None]:
        """Lock the engine against other changes; from here on the attempt is not given up.

        Where swaps drain, the gate is closed meanwhile, and no request is inside.
        """

    @abstractmethod
    async def flip(self, staged: Staged, *, probe: bool = True) -> Staged:
        """Have the engine answer by these weights; return the weights that answered before.

        A failure in here is undone in here. An engine that can probe live weights only does so,
        unless `probe` is false.
        """

    @abstractmethod
    async def answer_as(self, generation: Generation, fresh: Staged, old: Staged) -> None:
        """Have the gate let requests in to `fresh`, as this generation, in the place of `old`."""

    @abstractmethod
    def keep_earlier(self, place: PastGeneration) -> AbstractAsyncContextManager[Staged | None]:
        """Yield the weights of an earlier generation, engine locked, ready for a flip.

        None when they are not in memory any more.
        """

    async def prove_unseen(self, staged: Staged) -> None:
        """Ask the probes in a lane without clients, as long as the weights are wanted."""
        with self.replica.seal_when_lost():
            await self.wanted.run_while_wanted(self._ask_probes(staged))

    def case_of(self, staged: Staged, *, is_dry_run: bool) -> Case:
        """Make the case that judges judge."""
        can_follow = self.replica.mode is Mode.OVERLAP and not is_dry_run
        once_live: list[OnceLive] | None = [] if can_follow else None
        return Case(self.replica, self.live, staged, self.progress, is_dry_run, once_live)

    async def judge(self, judge: Judge, case: Case) -> None:
        """Ask a judge, as long as the weights are wanted; no client sees the answers."""
        with self.replica.seal_when_lost():
            await self.wanted.run_while_wanted(ask_judge(judge, case))

    # --- what both ways do -----------------------------------------------------------------

    async def _stage(self, make: MakeWeights) -> Staged:
        """Make new weights beside the live ones, as long as they are wanted."""
        progress, weights = self.progress, self.engine.weights
        async with (
            progress.phase(Phase.STAGING, self.rules.stage_timeout, "stage_timeout"),
            publish_progress(lambda: weights.staging_progress, progress.revision, progress.publish),
        ):
            staged = await self.wanted.run_while_wanted(make(self.engine), weights.release)
        progress.loading = staged.loading or progress.loading  # a copy was not loaded
        self.replica.staged = staged
        # Weights that are not loaded from a checkpoint are copied whole.
        self.replica.staged_bytes += staged.loading.bytes_read if staged.loading else staged.bytes
        return staged

    async def _ask_probes(self, staged: Staged) -> None:
        """Ask the probes; bad answers reach no client."""
        try:
            within = self.rules.proving_timeout
            async with self._time_probes(within, "[reload] probe_timeout beside clients"):
                await self.engine.unseen.prove(staged)
        except (EngineLost, TryAgain):  # no room for the shadow says nothing about the weights
            raise
        except Exception as bad:
            self.progress.verdict = as_verdict(bad)
            raise self.progress.verdict from bad

    @asynccontextmanager
    async def _time_probes(self, seconds: float, setting: str) -> AsyncIterator[None]:
        self.progress.note(probe_evidence(ASKED))
        async with limit_probes(seconds, setting), self.progress.phase(Phase.PROBING):
            yield
        self.progress.note(probe_evidence(PASSED))
