"""Compares the wanted revision with the live one, and decides what to try, and when.

One change at a time: an operator's order comes first, then the source's newest wish. While the gate
is open only these attempts and orders change the ledger; before and after, the start and the daemon
do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from hotreload.attempts import Attempt, By
from hotreload.core.attempt import AttemptUnderWay, Validate
from hotreload.core.attempt_records import AttemptPolicy, Attempts
from hotreload.core.decision import Sleep, decide, learn
from hotreload.core.engines.replica import Replicas
from hotreload.core.judge import MakeJudges, no_judges
from hotreload.core.orders import Order, OrderQueue
from hotreload.core.ports import Engine, Source
from hotreload.core.progress import WantedCheck
from hotreload.core.rules import Rules
from hotreload.errors import DrainTimedOut, EngineLost, NotSaved, Recognized
from hotreload.events import GenerationNamed, PhaseEntered, RevisionWanted, Wait
from hotreload.threads import wait_at_most
from hotreload.types import Generation, Outcome, Reason, Revision

log = logging.getLogger("hotreload.reconcile")


@dataclass(eq=False, kw_only=True)
class Reconciler:
    """Makes the wanted revision live, one attempt after the other."""

    source: Source
    replicas: Replicas[Engine]
    attempts: Attempts
    validate: Validate
    rules: Rules
    """Rules that an attempt takes when it begins; they may be replaced at any time."""
    judges: MakeJudges = no_judges
    """Make the judges of new weights, which judge before these go live."""

    def __post_init__(self) -> None:
        self.ledger = self.attempts.ledger
        self.orders = OrderQueue(self.ledger)
        self._under_way: AttemptUnderWay | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._pinning = asyncio.Lock()
        self._waiting: str | None = None

    async def run(self) -> None:
        """Follow the source and carry out its wishes, for ever; EngineLost ends this."""
        self.ledger.resume(self.replicas.live.revision)
        self._publish_due()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name="follow the source")
                tasks.create_task(self._work(), name="reconcile")
        finally:
            self.orders.end()
            await self.attempts.follow_ups.stop()

    # --- what an operator orders ---------------------------------------------------------

    def take(self, order: Order) -> asyncio.Future[Attempt]:
        """Take an order, or raise why not now; the future holds how the attempt ended."""
        self.orders.take(order, self._under_way)
        if order.version and self._under_way is not None:
            self._under_way.name(order.revision, order.version)
        self.attempts.news.set()
        return order.done

    async def name_live(self, version: str) -> Generation:
        """Call the live generation by this version; requests inside keep the former one."""
        live = replace(self.replicas.live, version=version)
        self.ledger.name_live(live)
        self.replicas.name_live(live)
        self.attempts.publish(GenerationNamed(live))
        await self.attempts.save()
        return live

    async def answer_decided(self, order: Order) -> Attempt:
        """Answer an order for a revision that was refused, or is live; it may rename the latter."""
        refusal = self.ledger.refused.get(order.revision.id)
        if refusal is not None and not order.is_fulfilled(self.replicas.live):
            again = f"{refusal.reason.message} (refused before; --force tries it again)"
            reason = Reason(refusal.reason.code, again, refusal.reason.findings)
            return self.answer_unattempted(order, Outcome.REJECTED, reason)
        if order.version and order.version != self.replicas.live.weight_version:
            await self.name_live(order.version)
        return self.answer_unattempted(order, Outcome.LIVE, None)

    async def set_pinned(self, pinned: bool, by: By) -> Generation:
        """Pin the live generation against the source, or unpin it; a restart keeps that.

        Returns the live generation once everything that came before has ended: attempts of the
        source end without going live, unless they were past that; orders take their turn.
        """
        async with self._pinning:
            due, take_back = self.ledger.due, self.ledger.set_pinned(pinned, by)
            self.attempts.news.set()
            if (why := await self.attempts.save()) is not None:
                take_back()
                self.attempts.news.set()
                verb = "pinned" if pinned else "unpinned"
                raise NotSaved(f"not {verb}: a restart would forget it, as {why}")
            if self.ledger.due != due:
                self._publish_due()
        if pinned:  # wait until all that was ordered or begun before now has ended
            if self.orders.promises:
                await asyncio.wait(self.orders.promises)
            await self._idle.wait()
        return self.replicas.live

    def answer_unattempted(self, order: Order, outcome: Outcome, reason: Reason | None) -> Attempt:
        """Answer an order that needs no attempt; the answer is no part of the history."""
        live = self.replicas.live if outcome is Outcome.LIVE else None
        number = live.number if live is not None else None
        version = live.weight_version if live is not None else order.version
        at = self.attempts.wall()
        ended = Attempt(order.revision, outcome, reason, {}, 0.0, at, number, by=order.by)
        blank = self.attempts.blank
        return replace(ended, dry_run=order.is_dry_run, version=version, evidence=blank)

    def judge_by(self, probes: str) -> None:
        """Judge by these probes; a wanted revision that failed others is tried once more."""
        self.ledger.judge_by(probes)
        self.attempts.news.set()

    # --- the loop ----------------------------------------------------------------------

    async def _follow(self) -> None:
        for failures in count(1):
            try:
                async for revision in self.source.follow_newest():
                    if self.ledger.wish(revision):
                        self._publish_due()
                        self.attempts.news.set()
                return
            except Exception:  # our own fault must not stop the old weights from serving
                log.exception("source.internal_error")
            await asyncio.sleep(self.attempts.backoff(failures))

    def _publish_due(self) -> None:
        if (due := self.ledger.due) is not None:
            self.attempts.publish(RevisionWanted(due))

    async def _work(self) -> None:
        while True:
            if (rest := await self.turn()) is not None:
                await self._sleep(rest.until)

    async def turn(self) -> Sleep | None:
        """Do the next thing there is to do, or return how long to sleep."""
        self.attempts.news.clear()
        if self.orders.first is not None:
            await self._carry_out(self.orders.first)
            return None
        why = self.attempts.not_now
        match Sleep(None, why) if why else decide(self.ledger, self.attempts.clock()):
            case Revision() as revision:
                is_wanted = self._make_is_wanted(revision)
                policy = AttemptPolicy(rest=self.rules.min_interval)
                with suppress(Recognized):
                    await self._attempt(revision, lambda attempt: attempt.reload(is_wanted), policy)
                return None
            case Sleep() as rest:
                self._publish_waiting(rest.why)
                return rest

    async def _carry_out(self, order: Order) -> None:
        left, wanted = self.replicas.live.revision, self.ledger.wanted
        order.revision = order.revision_on(self.replicas.live)
        try:
            attempt = await self._attempt_ordered(order)
            order.revision = learn(self.ledger, order.revision)
            if attempt.outcome is Outcome.LIVE:
                await self._obey(order, left, wanted)
            order.settle(attempt)
        except EngineLost as lost:
            order.fail(lost)
            raise
        finally:
            self.orders.drop(order)

    async def _attempt_ordered(self, order: Order) -> Attempt:
        """Carry out an order and return how it ended; make an attempt only if one is needed."""
        if order.is_overruled:
            words = "a rollback was asked for before its turn came"
            return self.answer_unattempted(order, Outcome.SUPERSEDED, Reason("superseded", words))
        if order.is_fulfilled(self.replicas.live):
            return await self.answer_decided(order)
        policy = AttemptPolicy(by=order.by, rest=self.rules.min_interval, dry_run=order.is_dry_run)
        with suppress(Recognized):
            return await self._attempt(order.revision, order.run, policy)
        order.revision = learn(self.ledger, order.revision)
        return await self.answer_decided(order)

    async def _obey(self, order: Order, left: Revision, wanted: Revision | None) -> None:
        """Record that the operator's choice overrules the source until its next wish."""
        is_same_wish = self.ledger.wanted == wanted  # else a new wish came meanwhile
        if is_same_wish and order.choose(self.ledger, left):
            self.attempts.publish(RevisionWanted(order.revision))
        if (reason := order.refusal_of(left)) is not None:
            self.ledger.refuse(left, reason, self.attempts.wall())
        if order.holds:
            self.ledger.set_pinned(True, order.by)
        await self.attempts.save()

    async def _sleep(self, until: float | None) -> None:
        seconds = None if until is None else until - self.attempts.clock()
        await wait_at_most(seconds, self.attempts.news)

    def _publish_waiting(self, why: str | None) -> None:
        if why != self._waiting:
            self._waiting = why
            self.attempts.publish(Wait(why, "reconciler"))

    def _make_is_wanted(self, revision: Revision) -> Callable[[], bool]:
        """Make the check whether an attempt at this revision is still wanted.

        A newer wish ends an attempt once; twice in a row, and nothing would ever go live. An
        attempt that only waits for room is ended each time: no work is lost. An order ends it each
        time, as a rollback must not wait for a download; until the flip a pin does, too.
        """
        once_already = self.ledger.superseded_last

        def is_wanted() -> bool:
            order, attempt = self.orders.first, self._under_way
            progress = attempt.progress if attempt is not None else None
            now = progress.revision if progress is not None else revision
            # A dry run that waits its turn decides nothing, until a rollback overrules it.
            if order is not None and (order.is_overruled or not order.is_dry_run):
                return order.revision == now and not order.is_overruled
            is_staged = progress is not None and progress.is_staged
            waits = progress is not None and progress.waits_for_room
            goes_on = (once_already and not waits) or is_staged
            is_wanted = self.ledger.wanted == now or goes_on
            return is_wanted and not self.ledger.pinned

        return is_wanted

    # --- one attempt ---------------------------------------------------------------------

    async def _attempt(
        self,
        revision: Revision,
        steps: Callable[[AttemptUnderWay], Awaitable[None]],
        policy: AttemptPolicy,
    ) -> Attempt:
        self._publish_waiting(None)
        self._idle.clear()
        progress = self.attempts.progress_of(revision)
        attempt = self._under_way = AttemptUnderWay(
            progress=progress,
            wanted=WantedCheck(progress, self.attempts.news, lambda: self.attempts.not_now),
            fetch=self.source.fetch,
            validate=self.validate,
            replicas=self.replicas,
            attempts=self.attempts,
            rules=self._rules_for(revision),
            judges=self.judges(),
        )
        try:
            async with self.attempts.open_record(progress, policy):
                await steps(attempt)
            if attempt.follow_up is not None:
                is_live = progress.generation is not None
                self.attempts.follow_ups.go_on_with(attempt.follow_up, is_live=is_live)
            return progress.ended
        except Recognized as known:
            log.info("reload.recognized", extra={"why": str(known)})
            self.attempts.publish(PhaseEntered(progress.revision, None))
            raise
        finally:
            self._under_way = None
            self._idle.set()

    def _rules_for(self, revision: Revision) -> Rules:
        """Double the time for a drain with each postponement: long requests cannot starve it."""
        failures = self.ledger.in_a_row(revision, DrainTimedOut.code)
        patience = self.rules.drain_timeout * 2 ** min(failures, 16)
        longest = max(self.rules.longest_drain, self.rules.drain_timeout)
        return replace(self.rules, drain_timeout=min(patience, longest))
