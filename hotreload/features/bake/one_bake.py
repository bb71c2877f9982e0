"""One bake: new weights beside old ones, from when they went live until it is over."""

from dataclasses import dataclass, field

from hotreload.features.bake.conduct import Conduct
from hotreload.features.bake.judgement import Bake, BakeOutcome
from hotreload.features.bake.rule import Sides, SignalTally, convicted_of, counts_of, is_decidable
from hotreload.features.bake.settings import BakeSettings
from hotreload.features.bake.signals import Signal
from hotreload.types import Generation


@dataclass(eq=False, slots=True)
class OneBake:
    """Counts on both sides, and what they say so far; it decides nothing."""

    generation: Generation
    """The generation as it went live; weights that are gone back to have another number."""
    new: Conduct
    old: Conduct
    rules: BakeSettings
    began: float
    """By the monotonic clock."""
    since: float
    """By the wall clock."""
    is_held: bool = False
    """True once its time is over, and it goes on for want of answers."""
    found: list[Signal] = field(default_factory=list)
    """The signals that convicted the new weights."""
    _new_tally: SignalTally = field(init=False)
    _old_tally: SignalTally = field(init=False)

    def __post_init__(self) -> None:
        """Count from now on, beside what was answered before."""
        beyond = self.old.long_from
        self._new_tally, self._old_tally = self.new.tally(beyond), self.old.tally(beyond)

    def end(self) -> None:
        """Count no longer."""
        self.new.tallies.remove(self._new_tally)
        self.old.tallies.remove(self._old_tally)

    @property
    def is_decidable(self) -> bool:
        """True if bad weights could have been found by now."""
        return is_decidable(self._sides)

    @property
    def due(self) -> float:
        """The time by the monotonic clock at which it is over, as far as is known."""
        return self.began + self._lasts

    @property
    def longest(self) -> float:
        """The time at which it is over in any case."""
        return self.began + self.rules.longest

    def look(self) -> None:
        """Look at the counts: at every moment, as nothing is lost by looking often."""
        self.found = convicted_of(self._sides)

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
            signals=counts_of(sides),
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
