"""The operator's settings for attempts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from hotreload.types import Shares

BY_MEMORY: Final = "auto"
"""Value of `sets` for as many sets of weights as memory holds, up to `MOST_SETS`."""
LONGEST_REQUEST = 600.0
"""Seconds that a request may take unless a setting says otherwise."""
LONGEST_PROBE = 30.0
MOST_SETS = 6
"""The most sets of weights where memory decides: each lane takes turns and slows tokens."""


class KeepPrevious(StrEnum):
    """The place of the previous generation's weights for a rollback."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of each step of an attempt, and the rules for keeping weights after it."""

    fetch_timeout: float = 3600.0
    validate_timeout: float = 1800.0
    stage_timeout: float = 1800.0
    drain_timeout: float = 30.0
    longest_drain: float = LONGEST_REQUEST
    """The longest time a request may run: after it a drain has seen every request end."""
    abort_on_drain_timeout: bool = False
    sets: int | Literal["auto"] = 2
    """The most sets of weights on the device, counting those that answer older requests."""
    finish_timeout: float = LONGEST_REQUEST
    """Seconds that older requests may take when new weights need their room."""
    together: bool = False
    """True to have all engines ready before any of them goes live."""
    probe_timeout: float = LONGEST_PROBE
    keep_previous: KeepPrevious = KeepPrevious.DEVICE
    times_beside_clients: float = Shares().times_as_long(LONGEST_PROBE)
    """Factor by which the probes may take longer while clients are answered."""

    @property
    def most_sets(self) -> int:
        """The most sets of weights on the device, whatever memory there is."""
        return MOST_SETS if self.sets == BY_MEMORY else self.sets

    @property
    def proving_timeout(self) -> float:
        """Seconds for the probes while clients are answered."""
        return self.probe_timeout * self.times_beside_clients
