"""Wanted against live: what to try, and when. The one writer of the ledger.

One change at a time: what an operator asks comes first, then the source's newest wish.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from hotreload import failpoints
from hotreload.core.asks import Ask, with_noise
from hotreload.core.ledger import Ledger, Sleep, Try, decide
from hotreload.core.ports import Source
from hotreload.core.reload import Reload, Replica, Rules, Validate
from hotreload.errors import Busy, EngineLost, HotReloadError, NotServing
from hotreload.events import (
    AttemptFinished,
    PhaseEntered,
    Publish,
    RevisionWanted,
    Waiting,
)
from hotreload.types import Attempt, Generation, Outcome, Reason, Revision, Staged

log = logging.getLogger("hotreload.reconcile")

Save = Callable[[Ledger], Awaitable[None]]
"""Make the ledger survive a restart; a disk that refuses must not raise here."""


def default_backoff(failures: int) -> float:
    """1, 2, 4 … seconds, about a minute at most."""
    return float(2 ** min(failures - 1, 6))


class Reconciler:
    """Brings what is live to what is wanted, one attempt after the other."""

    def __init__(
        self,
        *,
        source: Source,
        replica: Replica,
        ledger: Ledger,
        validate: Validate,
        save: Save,
        publish: Publish,
        rules: Rules,
        min_interval: float = 0.0,
        backoff: Callable[[int], float] = default_backoff,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self._source = source
        self._replica = replica
        self._validate = validate
        self._save = save
        self._publish = publish
        self._rules = rules
        self._min_interval = min_interval
        self._backoff = backoff
        self._clock = clock
        self._wall = wall
        self._asked: Ask | None = None
        self._overruling: Ask | None = None
        self._reload: Reload | None = None
        self._is_over = False
        self._wake = asyncio.Event()
        self._waiting: str | None = None

    async def run(self) -> None:
        """Follow the source and work off its wishes, for ever; EngineLost ends it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name="follow the source")
                tasks.create_task(self._work(), name="reconcile")
        finally:
            self._is_over = True
            for ask in filter(None, (self._asked, self._overruling)):  # their turn never comes
                ask.done.cancel()
            self._asked = self._overruling = None

    # --- what an operator asks -----------------------------------------------------------

    @property
    def asked(self) -> Ask | None:
        """What is asked for and not done."""
        return self._asked

    def ask(self, ask: Ask) -> asyncio.Future[Attempt]:
        """Take what an operator asks; Busy while another is not done.

        A rollback overrules what can still be given up: it is asked for in an emergency.
        """
        if self._is_over:
            raise NotServing("hotreload is stopping", code="stopping")
        if self._asked is None:
            self._asked = ask
        elif ask.back_to is not None and self._may_be_overruled(self._asked):
            self._asked.is_overruled, self._overruling = True, ask
        else:
            raise Busy(f"{self._asked.revision} was asked for and is not done; ask again then")
        self._wake.set()
        return ask.done

    def _may_be_overruled(self, asked: Ask) -> bool:
        if asked.back_to is not None or asked.noise is not None or self._overruling is not None:
            return False
        under_way = self._reload
        return under_way is None or under_way.revision != asked.revision or under_way.may_give_up

    async def set_pinned(self, pinned: bool) -> None:
        """Hold the live generation against the source, or follow it again; survives a restart."""
        self.ledger.pinned = pinned
        self._wake.set()
        await self._save(self.ledger)

    def unattempted(self, revision: Revision, outcome: Outcome, reason: Reason | None) -> Attempt:
        """The answer to an ask that needs no attempt; it is not part of the history."""
        number = self._replica.live.number if outcome is Outcome.LIVE else None
        return Attempt(revision, outcome, reason, {}, 0.0, self._wall(), number)

    # --- the loop ----------------------------------------------------------------------

    async def _follow(self) -> None:
        for failures in count(1):
            try:
                async for revision in self._source.wanted():
                    self.ledger.wanted = revision
                    self._publish(RevisionWanted(revision))
                    self._wake.set()
                return
            except Exception:  # a fault of ours must not stop the old weights from serving
                log.exception("source.internal_error")
            await asyncio.sleep(self._backoff(failures))

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            if self._asked is not None:
                await self._serve(self._asked)
                continue
            match decide(self.ledger, self._clock()):
                case Try(revision):
                    wanted = self._still_wanted(revision)
                    await self._attempt(revision, partial(Reload.run, still_wanted=wanted))
                case Sleep(until, why):
                    self._say_waiting(why)
                    await self._sleep(until)

    async def _serve(self, ask: Ask) -> None:
        left, wanted = self._replica.live.revision, self.ledger.wanted
        if ask.noise is not None:  # another generation may have gone live since it was asked for
            ask.revision = with_noise(self._replica.live, ask.noise)
        try:
            if ask.is_overruled:
                words = "a rollback was asked for before its turn came"
                attempt = self.unattempted(
                    ask.revision, Outcome.SUPERSEDED, Reason("superseded", words)
                )
            elif ask.revision == left and not ask.force:  # it went live while it was asked for
                attempt = self.unattempted(left, Outcome.LIVE, None)
            else:
                attempt = await self._attempt(ask.revision, ask.run)
            if attempt.outcome is Outcome.LIVE:
                await self._obey(ask, left, wanted)
            _settle(ask.done, attempt)
        except EngineLost as lost:
            if not ask.done.done():
                ask.done.set_exception(lost)
                ask.done.exception()  # nobody may be waiting for it any more
            raise
        finally:
            self._asked, self._overruling = self._overruling, None
            ask.done.cancel()

    async def _obey(self, ask: Ask, left: Revision, wanted: Revision | None) -> None:
        """What an operator made live overrules the source until it wishes something new."""
        is_newer = wanted is not None and wanted != left
        if ask.noise is not None and is_newer:
            return  # noise is no choice of weights: what the source wishes comes after it
        if self.ledger.wanted == wanted:  # else it has, while the operator's was made live
            self.ledger.wanted = ask.revision
            self._publish(RevisionWanted(ask.revision))
        if ask.back_to is not None and left != ask.revision:
            reason = Reason("rolled_back", "an operator rolled back from this revision")
            self.ledger.refuse(left, reason, self._wall())
        await self._save(self.ledger)

    async def _sleep(self, until: float | None) -> None:
        timeout = None if until is None else max(0.0, until - self._clock())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)

    def _say_waiting(self, why: str | None) -> None:
        if why != self._waiting:
            self._waiting = why
            self._publish(Waiting(why, "reconciler"))

    def _still_wanted(self, revision: Revision) -> Callable[[], bool]:
        """A newer wish supersedes once; twice in a row, and nothing would ever go live.

        What an operator asks always does: a rollback must not wait for a download.
        """
        once_already = self.ledger.superseded_last

        def is_wanted() -> bool:
            if self._asked is not None and self._asked.revision != revision:
                return False
            newer = self.ledger.wanted != revision and not once_already
            return not newer and not self.ledger.pinned

        return is_wanted

    # --- one attempt, and its record ---------------------------------------------------

    async def _attempt(
        self, revision: Revision, run: Callable[[Reload], Awaitable[None]]
    ) -> Attempt:
        self._say_waiting(None)
        reload = self._reload = self._new_reload(revision)
        self.ledger.begin(revision)
        await self._save(self.ledger)
        error: BaseException | None = None
        try:
            await run(reload)
        except asyncio.CancelledError as cancel:
            error = reload.verdict or cancel
            if reload.generation is None and reload.verdict is None:
                if not self._replica.gate.is_lost:  # else the next start counts it as a death
                    self.ledger.abandon()  # it says nothing about the checkpoint
                await self._save(self.ledger)
                raise
        except Exception as failure:
            error = failure
        attempt = self._describe(reload, error)
        await self._record(attempt, getattr(error, "retry_after", None) or 0.0)
        self._raise_what_ends_us(error)
        return attempt

    def _new_reload(self, revision: Revision) -> Reload:
        return Reload(
            self._replica,
            revision,
            source=self._source,
            validate=self._validate,
            commit=self._commit,
            remember=partial(self._save, self.ledger),
            publish=self._publish,
            news=self._wake,
            rules=self._rules_for(revision),
            clock=self._clock,
        )

    def _rules_for(self, revision: Revision) -> Rules:
        """Each postponement doubles the wait for a drain: long requests cannot starve it."""
        failures = self.ledger.drains_in_vain(revision)
        patience = self._rules.drain_timeout * 2 ** min(failures, 16)
        longest = max(self._rules.longest_drain, self._rules.drain_timeout)
        return replace(self._rules, drain_timeout=min(patience, longest))

    def _commit(self, staged: Staged, path: Path | None) -> Generation:
        """Name what is live now. In memory only: the disk is written when the gate is open."""
        generation = Generation(
            self.ledger.next_number,
            staged.revision,
            staged.fingerprint,
            self._wall(),
            staged.leaves,
            staged.bytes,
        )
        known = self.ledger.place_of_revision(staged.revision)
        self.ledger.went_live(generation, str(path) if path else known.path if known else "")
        return generation

    def _describe(self, reload: Reload, error: BaseException | None) -> Attempt:
        outcome, reason = Outcome.LIVE, None
        if error is not None and reload.generation is None:
            outcome, reason = self._judge(reload.revision, error)
        elif isinstance(error, Exception):  # it is live all the same
            log.error("reload.untidy", exc_info=error)
        return Attempt(
            revision=reload.revision,
            outcome=outcome,
            reason=reason,
            phases=reload.phases,
            pause_seconds=reload.pause_seconds,
            finished_at=self._wall(),
            generation=reload.generation.number if reload.generation else None,
            rolled_back=reload.rolled_back,
            fingerprints=reload.fingerprints,
        )

    def _judge(self, revision: Revision, error: BaseException) -> tuple[Outcome, Reason]:
        if isinstance(error, HotReloadError) and error.outcome is not None:
            return error.outcome, error.reason
        # A fault of ours: it must not stop the old weights from serving.
        log.error("reload.internal_error", exc_info=error)
        words = f"internal error in hotreload: {type(error).__name__}: {error}"
        # What was live once is good: a fault of ours must not bar the way back to it.
        was_live = self.ledger.place_of_revision(revision) is not None
        return Outcome.POSTPONED if was_live else Outcome.REJECTED, Reason("internal", words)

    async def _record(self, attempt: Attempt, not_within: float) -> None:
        def backoff(failures: int) -> float:
            return max(self._backoff(failures), not_within)

        self.ledger.finish(attempt, now=self._clock(), backoff=backoff, rest=self._min_interval)
        self._publish(PhaseEntered(attempt.revision, None))
        self._publish(AttemptFinished(attempt, self._replica.live))
        await self._save(self.ledger)
        await failpoints.reach("saved")

    def _raise_what_ends_us(self, error: BaseException | None) -> None:
        if isinstance(error, EngineLost | asyncio.CancelledError):
            raise error
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # it came while a failure was more important


def _settle(promise: asyncio.Future[Attempt], attempt: Attempt) -> None:
    if not promise.done():
        promise.set_result(attempt)
