"""Compares the new weights of an attempt with the live ones, and refuses those beyond a limit."""

import logging
import time
from contextlib import AbstractContextManager

from hotreload.core.judge import Case, check_can_ask
from hotreload.core.ports import Engine
from hotreload.errors import EngineLost, SourceUnavailable
from hotreload.features.compare.behaviour import Behaviour
from hotreload.features.compare.comparing import BehaviourRejected, check_limits, compared
from hotreload.features.compare.evidence import evidence_of
from hotreload.features.compare.hearing import Hearing
from hotreload.features.compare.replaying import also_by_heard
from hotreload.features.compare.settings import CompareSettings
from hotreload.threads import deadline
from hotreload.types import Phase

log = logging.getLogger("hotreload.reload")


class CompareJudge:
    """The comparison of one attempt; without limits nothing that fails in it fails a checkpoint."""

    takes_long = False

    def __init__(self, settings: CompareSettings, shadow_share: float, hearing: Hearing) -> None:
        """`hearing` has the requests of clients that both weights are led along.

        `shadow_share` is the part of their turns in which new weights compute, beside clients.
        """
        self._settings = settings
        self._shadow_share = shadow_share
        self._hearing = hearing
        self._cut_short = ""
        """The point that it reached before its time was over."""

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where limits are set and this engine cannot compare weights."""
        if self._settings.limits.are_any:
            check_can_ask("[compare] limits", engine.cannot_compare)

    def watching(self) -> AbstractContextManager[None]:
        """Mirror requests of clients."""
        return self._hearing.mirroring()

    async def judge(self, case: Case) -> None:
        """Compare, if that is wanted and can be done, and raise what is beyond a limit."""
        if not self._settings.report or case.replica.engine.cannot_compare is not None:
            return
        seconds = self._settings.seconds(self._shadow_share, is_hurried=case.is_hurried)
        so_far = list[str]()
        try:
            async with case.progress.phase(Phase.COMPARING):
                found = await self._found(case, seconds, so_far)
            case.progress.note(evidence_of(found, self._cut_short))
            if found is not None:
                check_limits(found, self._settings.limits)
        except (BehaviourRejected, EngineLost):
            raise
        except Exception as fault:
            if self._settings.limits.are_any:
                raise
            if isinstance(fault, SourceUnavailable) and so_far:
                self._note_cut_short(case, seconds, so_far[-1])
                return
            why = f"{type(fault).__name__}: {fault}"
            log.warning("behaviour.not_compared", extra={"why": why})

    async def _found(self, case: Case, seconds: float, so_far: list[str]) -> Behaviour | None:
        """Ask both weights, then lead both along what clients were answered."""
        engine, began = case.replica.engine, time.monotonic()
        async with deadline(seconds, "comparing new weights with the live ones", "[compare] time"):
            found = await compared(engine, case.staged, self._settings.questions, so_far.append)
        if found is None or not (heard := self._hearing.for_the_candidate()):
            return found
        left, decides = began + seconds - time.monotonic(), self._settings.limits.are_of_heard
        found = await also_by_heard(engine, case.staged, found, heard, left, decides=decides)
        if time.monotonic() - began >= seconds:
            along = f"{found.heard} of {len(heard)} requests of clients"
            self._note_cut_short(case, seconds, f"both were led along {along}")
        return found

    def _note_cut_short(self, case: Case, seconds: float, so_far: str) -> None:
        self._cut_short = f"cut short after {seconds:g} s: {so_far}"
        case.progress.note(evidence_of(None, self._cut_short))
        log.info("behaviour.cut_short", extra={"why": self._cut_short})
