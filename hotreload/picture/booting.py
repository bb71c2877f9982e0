"""The start of the daemon: which step of it runs, since when, how far, how long it took last time.

It sees every event until the gate opens for the first time.
"""

import time
from collections.abc import Callable, Iterable

from hotreload.events import Event, PhaseEntered, Progress, Waiting
from hotreload.json_fields import Fields, iso, revision_fields
from hotreload.picture.under_way import DOING
from hotreload.types import Attempt, Outcome, Phase, Revision

STARTING, WAITING = "starting", "waiting"
"""The steps that are no phase of an attempt."""


class Booting:
    """Knows which step of the start runs."""

    def __init__(
        self,
        history: Callable[[], Iterable[Attempt]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`history` is the last attempts, newest first, those of earlier lives among them."""
        self._history = history
        self._clock = clock
        self._wall = wall
        self._began = wall()
        self._enter(None, None)

    def _enter(self, phase: Phase | None, revision: Revision | None) -> None:
        self._phase, self._revision = phase, revision
        self._since, self._since_wall = self._clock(), self._wall()
        self._done: tuple[int, int] | None = None
        self._waits_for: str | None = None

    def observe(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case PhaseEntered(revision, Phase() as phase):
                self._enter(phase, revision)
            case PhaseEntered():
                self._enter(None, None)
            case Progress(revision, phase, done, total) if phase is self._phase:
                self._done = (done, total)
            case Waiting(str() as waiting_for, "start") if waiting_for != self._waits_for:
                self._enter(None, None)
                self._waits_for = waiting_for

    def fields(self) -> Fields:
        """Return the step as /status shows it."""
        done, total = self._done or (None, None)
        unit = "batches" if self._phase is Phase.WARMING else "bytes"
        of = (
            revision_fields(self._revision) if self._revision else {"revision": None, "label": None}
        )
        return {
            "step": self._step,
            "doing": self.words(),
            **of,
            "since": iso(self._began),
            "step_since": iso(self._since_wall),
            "step_seconds": round(self._clock() - self._since, 3),
            "usual_seconds": self._usual_seconds(),
            "done": done,
            "total": total,
            "unit": unit if self._done else None,
        }

    @property
    def _step(self) -> str:
        if self._phase is not None:
            return self._phase.value
        return WAITING if self._waits_for else STARTING

    def words(self) -> str:
        """Say what the start is at."""
        if self._phase is not None:
            return f"{DOING[self._phase]} {self._revision}"
        return f"waiting for {self._waits_for}" if self._waits_for else "the engine is starting"

    def _usual_seconds(self) -> float | None:
        """Seconds that this step took in the last start that ended well; None if none is known."""
        phase = self._phase
        if phase is None:
            return None
        starts = (a for a in self._history() if a.is_of_a_start and a.outcome is Outcome.LIVE)
        return next((round(a.phases[phase], 3) for a in starts if phase in a.phases), None)
