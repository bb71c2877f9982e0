"""The start: tries one candidate after the other, until one of them answers.

Each try is an attempt, with its steps, events, history and metrics. Only the switch differs: the
engine is made with the weights, no gate is open yet, and no older weights can be put back.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from hotreload.attempts import REJECTIONS, START, Attempt, By
from hotreload.core.attempt import Validate, prepare
from hotreload.core.attempt_records import AttemptPolicy, Attempts
from hotreload.core.ports import Source
from hotreload.core.progress import WantedCheck
from hotreload.engine.options import RANDOM_WEIGHTS
from hotreload.engine.upstream.build import DOES_NOT_START
from hotreload.errors import (
    BadRequest,
    CheckpointRejected,
    ConfigError,
    DeviceUnavailable,
    EngineLost,
    SourceUnavailable,
    TryAgain,
)
from hotreload.events import Wait
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.candidates import (
    FOR_NO_ENGINE,
    OF_THE_SETTINGS,
    Candidate,
    Candidates,
    PassedBy,
    nothing_to_start_with,
)
from hotreload.life.start.first_switch import FirstSwitch, log_first_answer
from hotreload.life.start.model_files import UNFIT_MODEL, find_served_model
from hotreload.life.start.start_troubles import Gone
from hotreload.life.start.whereabouts import (
    Absent,
    first_missing,
    log_missing_mount,
    read_from_disk,
    reject_on_fault,
    wait_for_mount,
)
from hotreload.settings.sections import Settings
from hotreload.types import Checkpoint, Revision, Served

log = logging.getLogger("hotreload.boot")

AWAITED_FILES_SECONDS = 5.0
"""Seconds between two looks of a start that waits for files."""

NOT_THE_CHECKPOINTS_FAULT = (ConfigError, DeviceUnavailable)
"""Errors that say nothing about the tried revision: they end the start."""


async def pass_no_failpoint(point: str) -> None:
    """Do nothing: tests arm failpoints for the attempts after the start."""


@dataclass(eq=False)
class Start:
    """Tries the candidates, the best first, until one answers."""

    settings: Settings
    attempts: Attempts
    source: Source
    validate: Validate
    serve: Callable[[Served], None]
    """Receive the model that checkpoints are checked against."""
    switch: FirstSwitch
    gone: Gone

    def __post_init__(self) -> None:
        self._model = self.settings.engine.model
        folders = (self._model, self.settings.source.path)
        self._folders = [path for path in folders if path is not None]
        self._awaited = self._folders
        """Folders whose mount may mend the present fault."""
        self._is_dummy = self.settings.engine.boot == "dummy"
        self._candidates = Candidates(self.settings, self.attempts.ledger, self.source)
        self._unfit: set[str] = set()
        """Revisions that no engine could be started with, though their files may be good."""

    @property
    def engine(self) -> RunningEngine | None:
        """The engine, once there is one; the caller of `run` closes it."""
        return self.switch.engine

    async def run(self) -> None:
        """Return as soon as a candidate answers; raise ConfigError when none can.

        A fault that only a mount can mend is tried again once the mount is there.
        """
        while True:
            try:
                await self._answer()
                log_first_answer(self.attempts.ledger.attempts[0])
                return
            except ConfigError as unfit:
                missing = await self._missing_mount() if unfit.code == UNFIT_MODEL else None
                if missing is None:
                    raise
                log_missing_mount(missing, str(unfit))
            self.attempts.publish(Wait(f"{missing} to be mounted", "start"))
            await wait_for_mount(missing, self._missing_mount)
            self.attempts.publish(Wait(None, "start"))

    async def _missing_mount(self) -> Path | None:
        if not self._awaited:
            return None
        return await read_from_disk(self._awaited[0], partial(first_missing, self._awaited))

    async def _serve_as(self, model: Path) -> None:
        """Serve this model; if it cannot be served, no checkpoint helps, and only its mount is
        awaited."""
        self._awaited = [model]
        self.serve(await find_served_model(model))
        self._awaited = self._folders

    async def _answer(self) -> None:
        if self._model is None:
            await self._without_a_model()
        elif self._is_dummy:
            await self._from_random(self._model)
        else:
            await self._from_the_best()

    async def _without_a_model(self) -> None:
        """Start from an earlier generation, or from the first wish that can be served."""
        try:
            kept = await self._candidates.kept_model()
            if kept is not None and self._is_dummy:
                await self._from_random(kept)
                return
            if self.attempts.ledger.last_good is not None and not self._is_dummy:
                await self._from_the_best(kept=kept)
                return
        except ConfigError as unfit:
            self._wait_for_a_checkpoint(unfit)
        for failures in count(1):
            if await self._from_a_wish():
                return
            await asyncio.sleep(self.attempts.backoff(failures))

    async def _from_a_wish(self) -> bool:
        """Try the source's wishes; return False to ask the source again later."""
        try:
            async for wish in self.source.follow_newest():
                if not self._is_hopeless(wish):
                    try:
                        await self._from(wish)
                        return True
                    except ConfigError as unfit:
                        self._wait_for_a_checkpoint(unfit)
                    if not self._is_hopeless(wish):
                        return False
        except (TryAgain, CheckpointRejected) as fault:
            log.warning("boot.no_model_yet", extra={"why": str(fault)})
            await asyncio.sleep(fault.retry_after or 0.0)
            return False
        raise ConfigError("the source ended before anything could be served")

    def _is_hopeless(self, wish: Revision) -> bool:
        return wish.id in self.attempts.ledger.refused or wish.id in self._unfit

    async def _from(self, wish: Revision) -> None:
        if self._is_dummy:
            await self._from_random(await self.source.fetch(wish))
        else:
            await self._from_the_best(wish)

    def _wait_for_a_checkpoint(self, unfit: ConfigError) -> None:
        """Log the wait for a checkpoint; raise a fault that no other checkpoint would mend."""
        if unfit.code != UNFIT_MODEL:
            raise unfit
        log.warning("boot.no_model_yet", extra={"why": str(unfit)})
        self.attempts.publish(Wait("a checkpoint that can be served", "start"))

    # --- one after the other -------------------------------------------------------------

    async def _from_the_best(self, wish: Revision | None = None, kept: Path | None = None) -> None:
        """Try each candidate in turn; `kept` is the model folder that earlier starts used.

        If checkpoints were live, no other weights may answer: the start waits for their files.
        """
        if self._model is not None:
            await self._serve_as(self._model)
        for failures in count(1):
            refusals = await self._refusals_of(self._candidates.list_all(wish), self._model or kept)
            if not refusals:
                return
            # The last live checkpoint is there, and does not fit the set model.
            is_a_setting = self._model is not None and refusals[0].code in OF_THE_SETTINGS
            if not self._candidates.must_wait or is_a_setting:
                raise nothing_to_start_with(refusals, self._candidates.must_wait)
            words = [refusal.words for refusal in refusals]
            self.gone.waits(self.attempts.ledger.start_target, words)
            has_tried = any(refusal.code for refusal in refusals)
            await asyncio.sleep(
                self.attempts.backoff(failures) if has_tried else AWAITED_FILES_SECONDS
            )

    async def _refusals_of(
        self, candidates: Iterable[Candidate], model: Path | None
    ) -> list[PassedBy]:
        """Try the candidates in order; return an empty list once one answers, else all refusals."""
        refusals: list[PassedBy] = []
        for candidate in candidates:
            refusal = await self._refusal_of(candidate, model)
            if refusal is None:
                self._publish_answer(candidate, refusals)
                return []
            refusals.append(refusal)
        return refusals

    def _publish_answer(self, candidate: Candidate, refusals: list[PassedBy]) -> None:
        self.attempts.publish(Wait(None, "start"))
        self.gone.waits_no_more()
        live = self.attempts.ledger.live
        if candidate.instead_of is not None and live is not None:
            self.gone.answers(live.revision, candidate.instead_of, refusals[0].words)

    async def _refusal_of(self, candidate: Candidate, model: Path | None) -> PassedBy | None:
        """Try one candidate; return None when it answers, else the refusal."""
        named = {"candidate": candidate.why}
        try:
            revision = await reject_on_fault(candidate.find())
        except Absent as nothing:
            self._candidates.log_absence(candidate, str(nothing))
            return PassedBy(candidate, str(nothing))
        except (CheckpointRejected, TryAgain) as fault:
            log.warning("boot.passed_over", extra={**named, "why": str(fault)})
            return PassedBy(candidate, str(fault))
        attempt = await self._attempt(revision, candidate, model)
        if attempt.reason is None:
            return None
        code, words = attempt.reason.code, attempt.reason.message
        log.warning("boot.passed_over", extra={**named, "why": words})
        if code in FOR_NO_ENGINE:
            self._unfit.add(revision.id)
        is_final = code in FOR_NO_ENGINE or code in REJECTIONS
        self._candidates.note_failure(candidate, words, is_final=is_final)
        return PassedBy(candidate, words, code)

    async def _attempt(
        self, revision: Revision, candidate: Candidate, model: Path | None
    ) -> Attempt:
        """Make the attempt; damaged files do not refuse a revision that was live before."""
        attempts, progress = self.attempts, self.attempts.progress_of(revision, pass_no_failpoint)
        is_good = candidate.is_configured or attempts.ledger.past_of(revision) is not None
        policy = AttemptPolicy(
            by=_start(candidate.why),
            blame=not is_good,
            refuse_files=not candidate.is_configured,
            raises=NOT_THE_CHECKPOINTS_FAULT,
        )
        async with attempts.open_record(progress, policy):
            wanted = WantedCheck(progress, asyncio.Event())
            fetch, check = partial(_fetch, candidate), partial(self._check, model)
            checkpoint = await prepare(progress, wanted, fetch, check, self.settings.rules)
            log.info("boot.chosen", extra={"path": str(checkpoint.path), "why": candidate.why})
            try:
                folder = model or checkpoint.path
                await self.switch.to(progress, folder, checkpoint, candidate.instead_of)
            except ConfigError as fault:
                is_the_model = model is None or checkpoint.path == model
                if fault.code != DOES_NOT_START or is_the_model:
                    raise
                raise TryAgain(str(fault), code=DOES_NOT_START) from fault
        if progress.verdict is not None:
            self._end_after(progress.verdict, progress.checkpoint)
        return progress.ended

    def _end_after(self, verdict: CheckpointRejected, tried: Checkpoint | None) -> None:
        """End the start: the engine answers badly, and holds no older weights."""
        if tried is not None and tried.path == self._model:
            words = f"[engine] model: {self._model} fails the probe: {verdict}"
            raise ConfigError(words) from verdict
        # The revision is refused, so the next start tries another.
        raise EngineLost(f"what the engine started with is refused: {verdict}") from verdict

    async def _check(self, model: Path | None, revision: Revision, path: Path) -> Checkpoint:
        """Check a candidate against the model, or against its own config if none is set."""
        if self._model is None:
            try:
                self.serve(await find_served_model(model or path))
            except ConfigError as unfit:
                raise TryAgain(str(unfit), code=UNFIT_MODEL) from unfit
        return await self.validate(revision, path)

    async def _from_random(self, model: Path) -> None:
        """Start with random weights, without fetch, checks or probes."""
        await self._serve_as(model)
        progress = self.attempts.progress_of(RANDOM_WEIGHTS, pass_no_failpoint)
        policy = AttemptPolicy(
            by=_start("[engine] boot"), blame=False, raises=NOT_THE_CHECKPOINTS_FAULT
        )
        async with self.attempts.open_record(progress, policy):
            await self.switch.to(progress, model, None)


def _start(why: str) -> By:
    return By(START, os.getuid(), os.getpid(), time.time(), why)


async def _fetch(candidate: Candidate, revision: Revision) -> Path:
    try:
        return await candidate.fetch(revision)
    except BadRequest as gone:
        raise SourceUnavailable(str(gone)) from gone
