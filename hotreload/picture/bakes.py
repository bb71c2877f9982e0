"""The ends of bakes so far; the one that goes on is a reading."""

from collections.abc import Mapping

from hotreload.events import BakeTold, Event
from hotreload.judgements import BakeOutcome

ENDS = tuple(each for each in BakeOutcome if each not in (BakeOutcome.BAKING, BakeOutcome.HELD))


class BakesNow:
    """Counts how bakes ended."""

    def __init__(self) -> None:
        self.ended: Mapping[BakeOutcome, int] = dict.fromkeys(ENDS, 0)

    def observe(self, event: Event) -> None:
        """Take in that one is over."""
        if isinstance(event, BakeTold) and event.bake.outcome in self.ended:
            outcome = event.bake.outcome
            self.ended = {**self.ended, outcome: self.ended[outcome] + 1}
