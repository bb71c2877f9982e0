"""Judges new weights by clients' answers after the flip, and rolls back from bad ones.

Each generation bakes for its whole time, also when a newer one goes live meanwhile: a trainer that
pushes every few seconds never waits, and all answers are judged. A generation is compared with the
last promoted one. One bad step after another cannot move the standard then.
"""

import asyncio
import logging
from dataclasses import replace

from hotreload.attempts import ROLLBACK, Attempt
from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.background import Leave
from hotreload.errors import EngineLost
from hotreload.events import AttemptFinished, Event, GenerationLive, OperatorAsked
from hotreload.features.bake.conduct import Conduct, Conducts
from hotreload.features.bake.evidence import (
    BAKE,
    Bake,
    BakeChanged,
    BakeOutcome,
    bake_of,
    convicted_words,
    promoted_words,
    refusal_of,
    too_few_words,
)
from hotreload.features.bake.one_bake import OneBake, WayOut
from hotreload.features.bake.rule import MIN_ANSWERS, BakeSettings
from hotreload.threads import wait_at_most
from hotreload.types import Generation, Outcome, Reason, Revision

log = logging.getLogger("hotreload.bake")

KEPT_PROMOTED = 2
"""The most promoted generations with enough answers that are kept, beside the last one."""
UNDER_WAY = (BakeOutcome.BAKING, BakeOutcome.HELD)
BACK = (ROLLBACK, "perturb")
"""The verbs by which an operator replaces the live weights."""


class Bakes:
    """Judges what goes live by its clients' answers; `run` does what follows."""

    def __init__(self, attempts: Attempts, rules: BakeSettings) -> None:
        self.conducts = Conducts()
        """The counted answers of each set of weights; the server reports them."""
        self.attempts = attempts
        """The attempts, whose generations are judged here."""
        self._live: Generation | None = None
        self._bakes: list[OneBake] = []
        self._promoted: list[Conduct] = []
        """The last ones, newest last."""
        self._convicted: set[str] = set()
        """Fingerprints of convicted weights that no operator has forced since."""
        self._way_out = WayOut(attempts.clock, attempts.publish)
        self._is_saved = True
        self._news = asyncio.Event()
        self.go_by(rules)

    def go_by(self, rules: BakeSettings) -> None:
        """Apply these rules to later generations; switching bakes off ends those under way."""
        self.rules = rules
        self.conducts.is_counting = rules.time > 0
        for bake in [] if rules.time else [*self._bakes]:
            self._end(bake, bake.describe(BakeOutcome.VOUCHED, "an operator switched it off"))
            self._promote(bake.new)

    @property
    def now(self) -> Bake | None:
        """The live generation's bake, None without one; for any thread."""
        bakes = [each for each in tuple(self._bakes) if self._is_live(each)]
        return bakes[0].describe() if bakes else None

    @property
    def conviction(self) -> Bake | None:
        """The judgement on live weights that are being rolled back; None without one."""
        return self._way_out.conviction

    # --- what happens ------------------------------------------------------------------------

    def _begin_with(self, live: Generation) -> None:
        """Promote the weights of a start: the answers of others are forgotten."""
        for attempt in tuple(self.attempts.ledger.attempts):
            state = bake_of(attempt.facts)
            if state is not None and state.outcome in UNDER_WAY:
                words = "the daemon was restarted meanwhile; what a start serves is not judged anew"
                cut = replace(state, outcome=BakeOutcome.CUT_SHORT, words=words)
                self._note(attempt.generation or 0, attempt.revision, cut)
        self._live = live
        if (state := self._conviction_before(live)) is not None:
            self._convicted.add(live.fingerprint)
            self._way_out.take(live, state)
        else:
            self._promote(self.conducts.of(live))
        self._news.set()

    def _conviction_before(self, live: Generation) -> Bake | None:
        """Return the conviction of live weights that a restart kept from being rolled back.

        Weights that had too few answers are promoted instead, as all weights of a start.
        """
        ledger = self.attempts.ledger
        if ledger.pinned or not self.rules.time:
            return None
        made = next((each for each in ledger.attempts if _made_live(each, live)), None)
        state = bake_of(made.facts) if made is not None else None
        return state if state is not None and state.outcome is BakeOutcome.CONVICTED else None

    def observe(self, event: Event) -> None:
        """Begin to judge what went live, and take what an operator pinned as promoted."""
        match event:
            case GenerationLive(live) if self._live is None:
                self._begin_with(live)
            case AttemptFinished(attempt, live) if attempt.outcome is Outcome.LIVE:
                if live is not None and not attempt.is_of_a_start:
                    self._went_live(attempt, live)
            case OperatorAsked(by, refusal=None) if by.verb == "pin" and self._live is not None:
                self._vouch_for(self._live, "an operator pinned it")

    def _went_live(self, ended: Attempt, live: Generation) -> None:
        """Judge what an attempt made live, unless an operator went back to it."""
        before, self._live = self._live, live
        verb = ended.by.verb if ended.by else ""
        if verb in BACK:
            self._end_of(before, BakeOutcome.LEFT, "a rollback left it")
        if verb == ROLLBACK:
            self._vouch_for(live, "a rollback went back to it")
        elif verb == BAKE:
            self._go_on_with(live)
        elif not live.revision.is_noise:
            self._begin(live)
        self.conducts.keep(self._is_needed)
        self._way_out.look_again()  # what was to be left may be left by now
        self._news.set()

    def _begin(self, live: Generation) -> None:
        new = self.conducts.of(live)
        if live.fingerprint in self._convicted:  # an operator forced it: it has another chance
            self._convicted.discard(live.fingerprint)
            new = self.conducts.begin_anew(live)
        new.generation = live
        old = self._control_for(new)
        if self._bakes_with(new):
            return
        is_pinned = self.attempts.ledger.pinned  # no rollback could leave it
        if old is None or new in self._promoted or not self.rules.time or is_pinned:
            self._promote(new)
            return
        clock, wall = self.attempts.clock(), self.attempts.wall()
        bake = OneBake(live, new, old, self.rules, clock, wall)
        new.on_answer = lambda: self._look(bake)
        self._bakes.append(bake)
        self._note(live.number, live.revision, bake.describe())

    def _go_on_with(self, live: Generation) -> None:
        """Judge what we went back to ourselves as far as it was not judged before it was left."""
        conduct = self.conducts.of(live)
        conduct.generation = live
        if not self._bakes_with(conduct):
            self._promote(conduct)

    def _bakes_with(self, new: Conduct) -> list[OneBake]:
        return [each for each in self._bakes if each.new is new]

    def _control_for(self, new: Conduct) -> Conduct | None:
        """The last promoted weights that have answered enough, or the last of all."""
        others = [each for each in reversed(self._promoted) if each is not new]
        enough = (each for each in others if len(each.recent) >= MIN_ANSWERS)
        return next(enough, None) or next(iter(others), None)

    def _look(self, bake: OneBake) -> None:
        """Look after each answer."""
        if bake.found or bake not in self._bakes:
            return
        bake.look()
        if bake.found or bake.is_held:
            self._news.set()

    # --- what follows ------------------------------------------------------------------------

    async def run(self, leave: Leave) -> None:
        """Convict, promote or hold what bakes, for ever."""
        while True:
            await self._sleep()
            self._news.clear()
            try:
                await self.turn(leave)
            except EngineLost:
                raise
            except Exception:  # a fault of ours must not stop the live weights from serving
                log.exception("bake.internal_error")
                self._bakes.clear()

    async def turn(self, leave: Leave) -> None:
        """Do all that there is to do now."""
        for bake in [*self._bakes]:
            self._judge(bake)
        await self._save()  # before the way back, which may take minutes
        if (left := await self._way_out.turn(self._live, leave)) is not None:
            self._refuse(left[0].revision, left[1])
        await self._save()

    async def _save(self) -> None:
        if not self._is_saved:
            self._is_saved = True
            await self.attempts.save()

    async def _sleep(self) -> None:
        dues = [bake.due for bake in self._bakes]
        dues += [self._way_out.due] if self._way_out.due is not None else []
        seconds = min(dues) - self.attempts.clock() if dues else None
        await wait_at_most(seconds, self._news)

    def _judge(self, bake: OneBake) -> None:
        if bake.found:
            state = bake.describe(BakeOutcome.CONVICTED)
            self._condemn(bake, replace(state, words=convicted_words(state, bake.found)))
        elif self.attempts.clock() < bake.began + bake.rules.time:
            return
        elif bake.is_decidable:
            state = bake.describe(BakeOutcome.PROMOTED)
            self._end(bake, replace(state, words=promoted_words(state)))
            self._promote(bake.new)
        else:
            self._end_undecided(bake)

    def _end_undecided(self, bake: OneBake) -> None:
        """Do as the operator decided for too few answers; what others have followed is let be."""
        wish, state = bake.rules.inconclusive, bake.describe(BakeOutcome.INCONCLUSIVE)
        is_live = self._is_live(bake)
        if wish == "hold" and is_live and self.attempts.clock() < bake.longest:
            if not bake.is_held:
                bake.is_held = True
                words = too_few_words(state, "it goes on until [bake] max_time")
                self._note(
                    bake.generation.number, bake.generation.revision, bake.describe(words=words)
                )
        elif wish == "rollback" and is_live:
            self._condemn(bake, replace(state, words=too_few_words(state, "so it is left")))
        else:
            self._end(bake, replace(state, words=too_few_words(state, "it counts as promoted")))
            self._promote(bake.new)

    def _condemn(self, bake: OneBake, state: Bake) -> None:
        """Refuse these weights, and leave them if they are live."""
        self._end(bake, state)
        self._convicted.add(bake.generation.fingerprint)
        if self._live is not None and self._is_live(bake):
            self._way_out.take(self._live, state)
        else:
            self._refuse(bake.generation.revision, refusal_of(state))

    def _refuse(self, revision: Revision, reason: Reason) -> None:
        """Refuse a convicted revision that is not live any more."""
        if self._live is None or self._live.revision != revision:
            self.attempts.ledger.refuse(revision, reason, self.attempts.wall())
            self._is_saved = False

    def _vouch_for(self, live: Generation, words: str) -> None:
        self._end_of(live, BakeOutcome.VOUCHED, words)
        conduct = self.conducts.of(live)
        conduct.generation = live
        self._convicted.discard(live.fingerprint)
        conviction = self._way_out.conviction
        if conviction is not None:  # a restart must not leave it all the same
            vouched = replace(conviction, outcome=BakeOutcome.VOUCHED, words=words)
            self._note(live.number, live.revision, vouched)
        self._way_out.forget()
        self._promote(conduct)
        self._news.set()

    def _end_of(self, generation: Generation | None, outcome: BakeOutcome, words: str) -> None:
        """End the bake of these weights, if they bake."""
        for bake in [*self._bakes]:
            if generation and bake.new.generation.fingerprint == generation.fingerprint:
                self._end(bake, bake.describe(outcome, words))

    def _end(self, bake: OneBake, state: Bake) -> None:
        self._bakes.remove(bake)
        bake.end()
        self._note(bake.generation.number, bake.generation.revision, state)

    def _note(self, generation: int, revision: Revision, state: Bake) -> None:
        self.attempts.note_late(BakeChanged(generation, revision, state))
        self._is_saved = False

    def _promote(self, conduct: Conduct) -> None:
        others = (each for each in self._promoted if each is not conduct)
        enough = [each for each in others if len(each.recent) >= MIN_ANSWERS]
        self._promoted = [*enough[-KEPT_PROMOTED:], conduct]

    def _is_live(self, bake: OneBake) -> bool:
        live = self._live
        return live is not None and bake.new.generation.fingerprint == live.fingerprint

    def _is_needed(self, conduct: Conduct) -> bool:
        weights = self._live.fingerprint if self._live else None
        in_bakes = any(conduct in (bake.new, bake.old) for bake in self._bakes)
        is_live = conduct.generation.fingerprint == weights
        return in_bakes or is_live or conduct in self._promoted


def _made_live(attempt: Attempt, live: Generation) -> bool:
    """Return whether the attempt, not a start, made these weights live."""
    went_live = attempt.outcome is Outcome.LIVE and not attempt.is_of_a_start
    return went_live and attempt.revision.id == live.revision.id
