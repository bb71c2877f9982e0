"""The operator's decisions about attempts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

BY_MEMORY: Final = "auto"
"""In the place of a number of sets of weights: as many as memory holds, within `MOST_SETS`."""
MOST_SETS = 6
"""The most sets of weights where memory decides: each lane has its turn, so tokens come slower."""


class KeepPrevious(StrEnum):
    """The place where the generation before waits for a rollback."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits for each step of an attempt, and what is kept after it."""

    fetch_timeout: float = 3600.0
    validate_timeout: float = 1800.0
    stage_timeout: float = 1800.0
    drain_timeout: float = 30.0
    longest_drain: float = 600.0
    """The longest a request may run: a drain that waits this long has seen every one end."""
    abort_on_drain_timeout: bool = False
    sets: int | Literal["auto"] = 2
    """The most sets of weights on the device, those that still answer older requests among them."""
    finish_timeout: float = 600.0
    """Time for answers by weights that are not live any more, if room is short."""
    together: bool = False
    """True to have several engines all ready before any goes live."""
    probe_timeout: float = 30.0
    keep_previous: KeepPrevious = KeepPrevious.DEVICE
    times_beside_clients: float = 2 + 5 / 30
    """Factor by which the probes may take longer where clients are answered meanwhile."""

    @property
    def most_sets(self) -> int:
        """The most sets of weights on the device, whatever memory there is."""
        return MOST_SETS if self.sets == BY_MEMORY else self.sets

    @property
    def proving_timeout(self) -> float:
        """Time for the probes where clients are answered meanwhile."""
        return self.probe_timeout * self.times_beside_clients
