"""How far a download or a loading is, how fast, and how long it still takes."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hotreload.events import AttemptFinished, Event, GenerationLive, PhaseEntered, Progress
from hotreload.types import Phase, Revision

WINDOW = 10.0
"""How many seconds back the rate is measured over."""


class Pace:
    """Sees every event; knows the phase under way whose bytes are counted, if there is one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Progress | None = None
        self._noted: deque[tuple[float, int]] = deque()

    def observe(self, event: Event) -> None:
        """Take in how far a phase is, or that it is over."""
        match event:
            case Progress(phase=Phase.WARMING):
                pass  # counts no bytes
            case Progress():
                self._note(event)
            case PhaseEntered() | AttemptFinished() | GenerationLive():
                self._last = None

    @property
    def revision(self) -> Revision | None:
        """The revision whose bytes are counted, if any are."""
        return self._last.revision if self._last else None

    def fields(self) -> dict[str, Any] | None:
        """Which phase is how far, in numbers; None when no bytes are awaited."""
        last = self._last
        if last is None or last.done >= last.total:
            return None
        far = {"done_bytes": last.done, "total_bytes": last.total}
        return {"phase": last.phase.value, **far, **self.pace()}

    def pace(self) -> dict[str, Any]:
        """How fast the bytes come, and how long it still takes (None when nothing comes)."""
        left, rate = self._last.total - self._last.done if self._last else 0, self._rate()
        return {
            "bytes_per_second": round(rate),
            "seconds_left": round(left / rate, 1) if rate else None,
        }

    def _note(self, progress: Progress) -> None:
        if self._last is None or progress.revision != self._last.revision:
            self._noted.clear()
        self._last = progress
        self._noted.append((self._clock(), progress.done))
        self._forget()

    def _rate(self) -> float:
        self._forget()
        if not self._noted:
            return 0.0
        (since, before), (_, now) = self._noted[0], self._noted[-1]
        return max(0, now - before) / max(self._clock() - since, 1e-3)

    def _forget(self) -> None:
        while len(self._noted) > 1 and self._noted[0][0] < self._clock() - WINDOW:
            self._noted.popleft()
