"""One bake: new weights beside old ones, from when they went live until they are left, or stay."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from hotreload.core.engines.background import Leave
from hotreload.events import Publish
from hotreload.features.bake.conduct import Conduct
from hotreload.features.bake.evidence import CONVICTED_ANSWERS, Bake, BakeOutcome, refusal_of
from hotreload.features.bake.rule import (
    BakeSettings,
    Sides,
    SignalTally,
    count_signals,
    is_decidable,
    list_convicting,
)
from hotreload.features.bake.signals import Signal
from hotreload.troubles import Trouble
from hotreload.types import Generation, Reason

log = logging.getLogger("hotreload.bake")

TRY_AGAIN = 30.0
"""Seconds between two tries."""
TODO = "make others live (hotreload reload NAME), or pin it if its answers are good"


@dataclass(eq=False, slots=True)
class OneBake:
    """One bake: counts of both weights' answers, and their judgement so far. Decides nothing."""

    generation: Generation
    """The generation as it went live; a rollback to its weights gives them another number."""
    new: Conduct
    old: Conduct
    rules: BakeSettings
    began: float
    """The time of its beginning by the monotonic clock."""
    since: float
    """The same by the wall clock."""
    is_held: bool = False
    """True once its time is over, and it goes on because answers are too few."""
    found: list[Signal] = field(default_factory=list)
    """The signals that convicted the new weights."""
    _new_tally: SignalTally = field(init=False)
    _old_tally: SignalTally = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count both weights' answers, with those of before."""
        beyond = self.old.long_from
        self._new_tally, self._old_tally = self.new.tally(beyond), self.old.tally(beyond)

    def end(self) -> None:
        """Stop counting."""
        self.new.tallies.remove(self._new_tally)
        self.old.tallies.remove(self._old_tally)

    @property
    def is_decidable(self) -> bool:
        """True if the answers so far would have shown bad weights."""
        return is_decidable(self._sides)

    @property
    def due(self) -> float:
        """The time by the monotonic clock at which it is over, as it stands now."""
        return self.began + self._lasts

    @property
    def longest(self) -> float:
        """The time at which it is over, however few answers there are."""
        return self.began + self.rules.longest

    def look(self) -> None:
        """Judge the counts; judging after every answer makes no error more likely."""
        self.found = list_convicting(self._sides)

    def describe(self, outcome: BakeOutcome | None = None, words: str = "") -> Bake:
        """Return the bake as it stands, or as it ends with this outcome."""
        sides, stands = self._sides, BakeOutcome.HELD if self.is_held else BakeOutcome.BAKING
        return Bake(
            outcome or stands,
            self.since,
            self.since + self._lasts,
            answers=sides.answers,
            against=self.old.generation.number,
            old_answers=sides.old_answers,
            signals=count_signals(sides),
            words=words,
        )

    @property
    def _lasts(self) -> float:
        return self.rules.longest if self.is_held else self.rules.time

    @property
    def _sides(self) -> Sides:
        return Sides(
            self._new_tally,
            self._old_tally,
            self.new.running,
            self.old.running,
            self.new.early_errors,
            self.rules.allowed_increase,
        )


class WayOut:
    """Rolls back from the live generation once it is convicted, and tries until that is done."""

    def __init__(self, clock: Callable[[], float], publish: Publish) -> None:
        self._clock = clock
        self._stuck = Trouble(CONVICTED_ANSWERS, publish)
        self._left: Generation | None = None
        self._due = 0.0
        self.conviction: Bake | None = None
        """The judgement on the generation to leave; None without one."""

    def take(self, left: Generation, conviction: Bake) -> None:
        """Begin to leave this generation; `turn` makes the first try."""
        self._left, self.conviction, self._due = left, conviction, self._clock()

    def look_again(self) -> None:
        """Make the next try due now: another generation may be live."""
        self._due = self._clock()

    def forget(self) -> None:
        """Stop leaving."""
        self._left = self.conviction = None
        self._stuck.set(None)

    @property
    def due(self) -> float | None:
        """The time of the next try; None without a generation to leave."""
        return None if self._left is None else self._due

    async def turn(self, live: Generation | None, leave: Leave) -> tuple[Generation, Reason] | None:
        """Roll back if a try is due; return the generation that is not live any more, and why."""
        left, conviction = self._left, self.conviction
        if left is None or conviction is None or self._clock() < self._due:
            return None
        reason = refusal_of(conviction)
        if left != live:
            self.forget()
            return left, reason
        self._due = self._clock() + TRY_AGAIN
        if (why := await leave(reason, left)) is not None:
            fields = {"generation": left.number, "cause": why, "again_in": TRY_AGAIN}
            log.warning("bake.not_rolled_back", extra=fields)
            self._stuck.set(f"{left.revision} is to be left and still answers: {why}", TODO)
        return None
