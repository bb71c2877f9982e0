"""The progress of a download or a loading: how far, how fast, how long still."""

import time
from collections.abc import Callable

from hotreload.events import AttemptFinished, Event, GenerationLive, PhaseEntered, Progress
from hotreload.json_fields import Fields
from hotreload.types import Phase

WINDOW = 10.0
"""Seconds that the rate is measured over."""


class Pace:
    """Knows the phase under way whose bytes are counted, if there is one.

    A scrape asks on a thread of its own, so what it reads is replaced and never changed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.last: Progress | None = None
        """The last word on how far it is."""
        self.began = 0.0
        """The time on the clock at which the bytes of this phase were first counted."""
        self._noted: tuple[tuple[float, int], ...] = ()

    def observe(self, event: Event) -> None:
        """Take in how far a phase is, or that it is over."""
        match event:
            case Progress(phase=Phase.WARMING):
                pass  # counts no bytes
            case Progress():
                self._note(event, self._clock())
            case PhaseEntered() | AttemptFinished() | GenerationLive():
                self.last = None

    def fields(self) -> Fields | None:
        """Return which phase is how far, in numbers; None when no bytes are awaited."""
        last = self.last
        if last is None or last.done >= last.total:
            return None
        far = {"done_bytes": last.done, "total_bytes": last.total}
        return {"phase": last.phase.value, **far, **self.pace()}

    def pace(self) -> Fields:
        """Return how fast the bytes come, and how long it still takes (None when nothing comes)."""
        last, rate = self.last, self._rate()
        left = last.total - last.done if last else 0
        return {
            "bytes_per_second": round(rate),
            "seconds_left": round(left / rate, 1) if rate else None,
        }

    def _note(self, progress: Progress, now: float) -> None:
        if self.last is None or progress.revision != self.last.revision:
            self._noted, self.began = (), now
        self.last = progress
        self._noted = (*self._within(now), (now, progress.done))

    def _rate(self) -> float:
        now = self._clock()
        noted = self._within(now)
        if not noted:
            return 0.0
        (since, before), (_, done) = noted[0], noted[-1]
        return max(0, done - before) / max(now - since, 1e-3)

    def _within(self, now: float) -> tuple[tuple[float, int], ...]:
        """Return the notes within the window, or the last one."""
        noted = self._noted
        return tuple(each for each in noted if each[0] >= now - WINDOW) or noted[-1:]
