"""Compares the new weights of an attempt with the live ones, and refuses those beyond a limit.

Before they go live it asks only what limits need. For the rest nothing waits: the history has it
once it is there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from hotreload.attempts import Evidence
from hotreload.behaviour import HeardRequest
from hotreload.core.engines.background import Leave
from hotreload.core.judge import Case, check_can_ask
from hotreload.core.ports import Engine
from hotreload.errors import EngineLost, SourceUnavailable
from hotreload.features.compare.comparison import (
    BehaviourComparison,
    BehaviourRejected,
    BothWeights,
    KnownAnswers,
    ask_again_what_is_live,
    breaches,
    check_limits,
)
from hotreload.features.compare.evidence import LiveCompared, evidence_of
from hotreload.features.compare.replay import RequestRecorder, also_by_heard
from hotreload.features.compare.settings import CompareSettings
from hotreload.threads import deadline
from hotreload.types import Generation, Phase, Reason

log = logging.getLogger("hotreload.reload")


@dataclass(frozen=True, slots=True)
class AllComparisons:
    """All that the comparisons of a daemon share."""

    recorder: RequestRecorder
    """Has the requests of clients that both weights are led along."""
    known: KnownAnswers
    """Has what the live weights answered when they were new."""
    record: Callable[[LiveCompared], None]
    """Record and publish what was found after the weights went live."""
    leave: Callable[[Reason, Generation], None]
    """Have live weights left that make no numbers."""


class CompareJudge:
    """The comparison of one attempt; without limits nothing that fails in it fails a checkpoint."""

    takes_long = False

    def __init__(self, settings: CompareSettings, shared: AllComparisons) -> None:
        self._settings = settings
        self._shared = shared
        self._heard: Sequence[HeardRequest] = ()
        """Clients' requests that both are not led along yet."""
        self._cut_short = ""
        """The point that it reached before it was ended."""

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where limits are set and this engine cannot compare weights."""
        if self._settings.limits.are_any:
            check_can_ask("[compare] limits", engine.unseen.cannot_compare)

    def watch(self) -> AbstractContextManager[None]:
        """Mirror requests of clients."""
        return self._shared.recorder.mirror()

    async def judge(self, case: Case) -> None:
        """Compare the weights, if the settings and the engine allow it; raise if a limit is broken.

        What decides nothing is put off until the weights are live.
        """
        if not self._settings.report or case.replica.engine.unseen.cannot_compare is not None:
            return
        self._heard = self._shared.recorder.take_recorded()
        both, known = _both(case), self._shared.known
        comparison = BehaviourComparison(both, known, self._settings.questions)
        if case.once_live is None or self._settings.limits.are_any:
            await self._decide(case, comparison)
        if case.once_live is not None:
            case.once_live.append(partial(self._finish, case, comparison))
            case.once_live.append(partial(ask_again_what_is_live, both, known))

    # --- before the weights go live ----------------------------------------------------------

    async def _decide(self, case: Case, comparison: BehaviourComparison) -> None:
        seconds = self._settings.seconds(is_dry_run=case.is_dry_run)
        try:
            async with case.progress.phase(Phase.COMPARING):
                await self._ask(comparison, seconds, is_last=case.once_live is None)
            case.progress.note(evidence_of(comparison.found, self._cut_short))
            if comparison.found is not None:
                check_limits(comparison.found, self._settings.limits)
        except (BehaviourRejected, EngineLost):
            raise
        except Exception as fault:
            if self._settings.limits.are_any:
                raise
            if isinstance(fault, SourceUnavailable):
                self._note_cut_short(f"after {seconds:g} s: {comparison.so_far}")
                case.progress.note(evidence_of(None, self._cut_short))
                return
            _log_not_compared(fault)

    async def _ask(self, comparison: BehaviourComparison, seconds: float, *, is_last: bool) -> None:
        """Ask as much as limits need; all if that `is_last`, or a limit is broken."""
        began, limits = time.monotonic(), self._settings.limits
        async with deadline(seconds, "comparing new weights with the live ones", "[compare] time"):
            await comparison.lead()
            if is_last or (comparison.found and any(breaches(comparison.found, limits))):
                await comparison.answer()
        if is_last or limits.are_of_heard:
            await self._hear(comparison, began + seconds - time.monotonic(), seconds)

    async def _hear(self, comparison: BehaviourComparison, left: float, most: float) -> None:
        """Lead both along what clients were answered, as far as there is time; once."""
        heard, self._heard = self._heard, ()
        if comparison.found is None or not heard:
            return
        began, decides = time.monotonic(), self._settings.limits.are_of_heard
        found = await also_by_heard(comparison.both, comparison.found, heard, left, decides=decides)
        comparison.found = found
        if time.monotonic() >= began + left:
            along = f"{found.heard} of {len(heard)} requests of clients"
            self._note_cut_short(f"after {most:g} s: both were led along {along}")

    def _note_cut_short(self, words: str) -> None:
        self._cut_short = f"cut short {words}"
        log.info("behaviour.cut_short", extra={"why": self._cut_short})

    # --- once they are live ------------------------------------------------------------------

    async def _finish(self, case: Case, comparison: BehaviourComparison) -> None:
        """Ask the rest, and record the report; a cancel ends it, which is recorded, too."""
        if comparison.is_over and not self._heard:
            return
        try:
            await comparison.lead()
            await comparison.answer()
            await self._hear(comparison, self._settings.time, self._settings.time)
        except asyncio.CancelledError:
            words = f"cut short by the next change, or the end of hotreload: {comparison.so_far}"
            self._record(case, evidence_of(comparison.found, words))
            raise
        except BehaviourRejected as bad:
            assert case.progress.generation is not None, "what is live has a number"
            self._shared.leave(bad.reason, case.progress.generation)
        except EngineLost:
            raise
        except Exception as fault:
            _log_not_compared(fault)
        else:
            self._record(case, evidence_of(comparison.found, self._cut_short))

    def _record(self, case: Case, found: Evidence) -> None:
        live = case.progress.generation
        assert live is not None, "what is live has a number"
        self._shared.record(LiveCompared(live.number, live.revision, found))


def _both(case: Case) -> BothWeights:
    return BothWeights(case.replica.engine, case.live, case.staged)


def _log_not_compared(fault: Exception) -> None:
    log.warning("behaviour.not_compared", extra={"why": f"{type(fault).__name__}: {fault}"})


class LeavesNoNumbers:
    """Leaves live weights that make no numbers, in a task of its own: the way back ends judges."""

    def __init__(self, leave: Leave) -> None:
        self._leave = leave
        self._taken = asyncio.Queue[tuple[Reason, Generation]]()

    def take(self, reason: Reason, live: Generation) -> None:
        """Leave this generation, and refuse it for this reason."""
        self._taken.put_nowait((reason, live))

    async def run(self) -> None:
        """Roll back from each generation in turn, for ever; one that cannot be left stays live."""
        while True:
            reason, live = await self._taken.get()
            if (why := await self._leave(reason, live)) is not None:
                fields = {"generation": live.number, "cause": why}
                log.warning("behaviour.not_rolled_back", extra=fields)
