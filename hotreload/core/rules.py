"""What the operator decided about attempts."""

from dataclasses import dataclass
from enum import StrEnum


class KeepPrevious(StrEnum):
    """Where the generation before waits for a rollback."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """How long each step of an attempt may take, and what is kept after it."""

    fetch_timeout: float = 3600.0
    validate_timeout: float = 1800.0
    stage_timeout: float = 1800.0
    drain_timeout: float = 30.0
    longest_drain: float = 600.0
    """The longest a request may run: a drain that waits this long has seen every one end."""
    abort_on_drain_timeout: bool = False
    sets: int = 2
    """The most sets of weights on the device, those that still answer older requests among them."""
    finish_timeout: float = 600.0
    """How long requests may be answered by weights that are not live any more, if room is short."""
    together: bool = False
    """Whether several engines are all made ready before any goes live."""
    probe_timeout: float = 30.0
    keep_previous: KeepPrevious = KeepPrevious.DEVICE
