"""When a hub may be asked again: jitter, growing waits, and what the hub itself asks for."""

import random
import time
from collections.abc import Callable
from enum import Enum

from hotreload.sources.hub.faults import FaultKind, HubFault

LONGEST_PASSING = 300.0
DENIED_FIRST, DENIED_LONGEST = 300.0, 3600.0
LIMITED_FIRST = 60.0
JITTER = 0.1


class HubCall(Enum):
    """The kinds of calls to a hub; a look that succeeds says nothing about downloads that fail."""

    LOOK = "look"
    DOWNLOAD = "download"


class Patience:
    """Counts failures in a row, and remembers until when a hub is rate-limiting us."""

    def __init__(
        self,
        poll: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._poll, self._clock, self._chance = poll, clock, chance
        self._failures = {HubCall.LOOK: 0, HubCall.DOWNLOAD: 0}
        self._silent_until = 0.0

    @property
    def silence(self) -> float:
        """Return for how many more seconds this process must not ask the hub."""
        return max(0.0, self._silent_until - self._clock())

    def after_answer(self, limit: float | None) -> float:
        """Return the seconds to wait after an answer; for `limit` seconds the hub is left alone."""
        self._failures[HubCall.LOOK] = 0
        if limit is not None:
            self.be_silent(limit)
        return max(self._around(self._poll), self.silence)

    def after_download(self) -> None:
        """Forget the downloads that failed: one came whole."""
        self._failures[HubCall.DOWNLOAD] = 0

    def heed(self, fault: HubFault, asking: HubCall = HubCall.LOOK) -> None:
        """Remember how long this fault says to leave the hub alone, for every caller."""
        if fault.retry_after is not None:
            self.be_silent(fault.retry_after)
        elif fault.kind is FaultKind.LIMITED:
            self.be_silent(LIMITED_FIRST * (1 << min(self._failures[asking], 6)))

    def after_fault(self, fault: HubFault, asking: HubCall = HubCall.LOOK) -> float:
        """Count a fault in a poll or a download; return the seconds to wait after it."""
        self.heed(fault, asking)
        self._failures[asking] += 1
        wait = self._wait(fault.kind, self._failures[asking])
        return max(self._around(wait), self.silence)

    def _wait(self, kind: FaultKind, failures: int) -> float:
        doubled = float(1 << min(failures - 1, 10))
        if kind is FaultKind.DENIED:
            return max(self._poll, min(DENIED_FIRST * doubled, DENIED_LONGEST))
        return max(self._poll, min(self._poll * doubled, LONGEST_PASSING))

    def be_silent(self, seconds: float) -> None:
        """Leave the hub alone at least this long, plus a random part: others wait as long, too."""
        until = self._clock() + seconds * (1 + JITTER * self._chance())
        self._silent_until = max(self._silent_until, until)

    def _around(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (2 * self._chance() - 1))
