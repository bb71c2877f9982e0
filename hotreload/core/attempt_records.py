"""Every attempt, also at the start, is begun, judged, recorded and published here."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hotreload import events, failpoints
from hotreload.attempts import NOT_PROBED, Attempt, By, Evidence
from hotreload.core.decision import learn
from hotreload.core.judge import FollowUps
from hotreload.core.ledger import Ledger, note_evidence
from hotreload.core.progress import AttemptProgress, Reach, new_attempt
from hotreload.errors import (
    EngineLost,
    HotReloadError,
    Misbehaved,
    NotSaved,
    ProbeFailed,
    Recognized,
    TryAgain,
)
from hotreload.events.event import LateEvidence
from hotreload.types import Generation, Outcome, Reason, Revision, Staged

log = logging.getLogger("hotreload.reconcile")

Save = Callable[[Ledger], Awaitable[str | None]]
"""Save the ledger for a restart; return why it is not saved, if a disk refuses."""


def default_backoff(failures: int) -> float:
    """Return 1, 2, 4 … seconds, about a minute at most."""
    return float(2 ** min(failures - 1, 6))


@dataclass(frozen=True, slots=True)
class AttemptPolicy:
    """The consequences that an attempt may have, decided before it begins."""

    by: By | None = None
    """The caller of the attempt; None is the source."""
    rest: float = 0.0
    """Seconds after it goes live in which no newer revision is tried."""
    blame: bool = True
    """True to have the next start blame the revision if the process dies in this attempt."""
    refuse_files: bool = True
    """True to have faults found in the files refuse the revision; bad answers always do."""
    dry_run: bool = False
    """True to make nothing live and refuse nothing: the ledger only records the attempt."""
    raises: tuple[type[Exception], ...] = (Recognized,)
    """Errors that say nothing about the revision: they are raised, and not recorded."""


@dataclass(eq=False)
class Attempts:
    """Makes attempts, one after the other, and records each in the ledger."""

    ledger: Ledger
    _: KW_ONLY
    write: Save
    publish: events.Publish
    is_lost: Callable[[], bool]
    """Return True if the engine is lost: a cancel that follows is not ours."""
    backoff: Callable[[int], float] = default_backoff
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    note_next_number: Save | None = None
    """Save the next number before the ledger is saved, or return why that failed."""
    blank: tuple[Evidence, ...] = ()
    """The evidence that each attempt begins with, that of the probes in front."""

    def __post_init__(self) -> None:
        self.blank = (NOT_PROBED, *self.blank)
        self._numbers_by_clock = False
        self.news = asyncio.Event()
        """Set whenever the attempt under way may not be wanted any more."""
        self.not_now: str | None = None
        """The reason for which no attempt begins, and one that stages nothing yet is given up."""
        self.follow_ups = FollowUps(self.save)
        """Work that ended attempts have left."""

    def put_off(self, why: str | None) -> None:
        """Put off all attempts for this reason; None to go on."""
        self.not_now = why
        self.news.set()

    def progress_of(self, revision: Revision, reach: Reach = failpoints.reach) -> AttemptProgress:
        """Make the progress of a new attempt at this revision."""
        return AttemptProgress(revision, self.publish, self.clock, reach, self.blank)

    @asynccontextmanager
    async def open_record(
        self, progress: AttemptProgress, policy: AttemptPolicy
    ) -> AsyncIterator[None]:
        """Record the attempt made in this block; it raises only errors that end the daemon.

        The attempt is recorded as begun before the block; afterwards `progress.ended` has its end.
        """
        with new_attempt():
            if policy.blame and not policy.dry_run:
                self.ledger.begin(progress.revision)
                await self.save()
            error: BaseException | None = None
            probes = self.ledger.probes
            try:
                yield
            except policy.raises:
                await self._abandon()
                raise
            except asyncio.CancelledError as cancel:
                error = progress.verdict or cancel
                if progress.generation is None and progress.verdict is None:
                    await self._abandon()
                    raise
            except Exception as failure:
                error = failure
            await self._end(progress, error, policy, probes)
            _raise_what_ends_us(error)

    async def _end(
        self,
        progress: AttemptProgress,
        error: BaseException | None,
        policy: AttemptPolicy,
        probes: str,
    ) -> None:
        """Judge how the attempt ended, record and publish that, and write it to disk.

        If the probes changed meanwhile, a failed probe does not refuse the revision.
        """
        self.learn(progress)
        attempt = progress.ended = self._describe(progress, error, policy)
        self.ledger.promised = 0
        if policy.dry_run:
            self.ledger.attempts.appendleft(attempt)
        else:
            may_refuse = policy.refuse_files or progress.verdict is not None
            asked = getattr(error, "retry_after", None) or 0.0
            is_by_these = attempt.reason is None or attempt.reason.code != ProbeFailed.code
            self.ledger.finish(
                attempt,
                now=self.clock(),
                backoff=lambda failures: max(self.backoff(failures), asked),
                rest=policy.rest,
                refuse=may_refuse and (is_by_these or probes == self.ledger.probes),
            )
        self.publish(events.PhaseEntered(attempt.revision, None))
        finished = events.DryRunFinished if attempt.dry_run else events.AttemptFinished
        self.publish(finished(attempt, self.ledger.live, progress.replica))
        await self.save()
        await progress.reach("saved")

    def learn(self, progress: AttemptProgress) -> bool:
        """Name the revision by its content, once that is known; return True if its id changed."""
        before = progress.revision
        progress.revision = learn(self.ledger, before)
        if progress.revision != before and self.ledger.wanted == progress.revision:
            self.publish(events.RevisionWanted(progress.revision))
        return progress.revision != before

    async def _abandon(self) -> None:
        """Forget the attempt: its end says nothing about the checkpoint."""
        self.ledger.promised = 0
        if not self.is_lost():  # a lost engine counts as a death at the next start
            self.ledger.abandon()
        await self.save()

    async def save(self) -> str | None:
        """Write the ledger to disk; return why that failed, if it did."""
        return await self.write(self.ledger)

    def note_late(self, event: LateEvidence) -> None:
        """Record and publish evidence on live weights; `save` writes it to disk."""
        note_evidence(self.ledger.attempts, event.generation, event.evidence)
        self.publish(event)

    async def secure_number(self, *, at_any_rate: bool = False) -> None:
        """Reserve the next number, so that no other weights get it; TryAgain if the disk refuses.

        With `at_any_rate` a refusal makes numbers of the clock instead, which no other life gives.
        """
        why = await self.note_next_number(self.ledger) if self.note_next_number else None
        if why is None or self._numbers_by_clock:
            return
        if not at_any_rate:
            raise TryAgain(
                f"{why}; so another could get its number after a restart", code=NotSaved.code
            )
        todo = "free some space there or make it writable: such numbers stay as long as they are"
        log.warning("number.by_clock", extra={"why": why, "todo": todo})
        self._numbers_by_clock = True
        self.ledger.numbers_given = max(self.ledger.numbers_given, int(self.wall() * 1000))

    def mint(self, staged: Staged, number: int | None = None, *, version: str = "") -> Generation:
        """Make the generation of weights about to answer; no other weights get its number."""
        number = number or self.ledger.next_number
        self.ledger.numbers_given = max(number, self.ledger.numbers_given)
        what = (staged.revision, staged.fingerprint, self.wall(), staged.leaves, staged.bytes)
        return Generation(number, *what, version=version)

    def record_live(self, generation: Generation, path: Path | None) -> None:
        """Record in memory that this generation is live; the disk is written later, gate open."""
        known = self.ledger.past_of(generation.revision)
        self.ledger.went_live(generation, str(path) if path else known.path if known else "")

    def _describe(
        self, progress: AttemptProgress, error: BaseException | None, policy: AttemptPolicy
    ) -> Attempt:
        live = progress.generation
        outcome, reason = Outcome.PASSED if policy.dry_run else Outcome.LIVE, None
        if error is not None and live is None:
            outcome, reason = self._outcome_of(progress.revision, error)
        elif isinstance(error, Exception):  # the weights are live in spite of it
            log.error("reload.untidy", exc_info=error)
        return Attempt(
            revision=progress.revision,
            outcome=outcome,
            reason=reason,
            phases=progress.phases,
            pause_seconds=progress.pause_seconds,
            finished_at=self.wall(),
            generation=live.number if live is not None else None,
            rolled_back=progress.rolled_back,
            fingerprints=progress.fingerprints,
            by=policy.by,
            loading=progress.loading,
            dry_run=policy.dry_run,
            version=live.weight_version if live is not None else progress.version,
            evidence=progress.evidence,
        )

    def _outcome_of(self, revision: Revision, error: BaseException) -> tuple[Outcome, Reason]:
        if isinstance(error, HotReloadError) and error.outcome is not None:
            outcome, reason = error.outcome, error.reason
        else:  # a fault of ours: it must not stop the old weights from serving
            log.error("reload.internal_error", exc_info=error)
            words = f"internal error in hotreload: {type(error).__name__}: {error}"
            outcome, reason = Outcome.REJECTED, Reason("internal", words)
        if outcome is Outcome.REJECTED and not isinstance(error, Misbehaved):
            # What was live once is good: only what it does may bar the way back to it.
            was_live = self.ledger.past_of(revision) is not None
            outcome = Outcome.POSTPONED if was_live else outcome
        return outcome, reason


def _raise_what_ends_us(error: BaseException | None) -> None:
    if isinstance(error, EngineLost | asyncio.CancelledError):
        raise error
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError  # a cancel came while the failure was dealt with
