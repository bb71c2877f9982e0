"""Leaves convicted weights while they are live: asks for a rollback until another one is."""

import logging
from collections.abc import Callable

from hotreload.core.engines.background import Leave
from hotreload.events import Publish
from hotreload.features.bake.evidence import CONVICTED_ANSWERS
from hotreload.features.bake.judgement import Bake, refusal_of
from hotreload.troubles import Trouble
from hotreload.types import Generation, Reason

log = logging.getLogger("hotreload.bake")

TRY_AGAIN = 30.0
"""Seconds between two tries."""
TODO = "make others live (hotreload reload NAME), or pin it if its answers are good"


class WayOut:
    """At most one generation is to be left: the live one."""

    def __init__(self, clock: Callable[[], float], publish: Publish) -> None:
        self._clock = clock
        self._stuck = Trouble(CONVICTED_ANSWERS, publish)
        self._left: Generation | None = None
        self._due = 0.0
        self.conviction: Bake | None = None
        """The judgement for which it is to be left; None where nothing is."""

    def take(self, left: Generation, conviction: Bake) -> None:
        """Leave this generation, as soon as may be."""
        self._left, self.conviction, self._due = left, conviction, self._clock()

    def look_again(self) -> None:
        """Look at once: another one may be live."""
        self._due = self._clock()

    def forget(self) -> None:
        """Leave nothing."""
        self._left = self.conviction = None
        self._stuck.set(None)

    @property
    def due(self) -> float | None:
        """The time of the next try; None where nothing is to be left."""
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
