"""The command's exit codes and their meaning, and the errors that only the command raises."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.client.errors import NotReady, TimedOut, Unreachable
from hotreload.errors import (
    AddressTaken,
    Busy,
    ConfigError,
    DeviceUnavailable,
    EngineLost,
    HotReloadError,
)

FAILED, USAGE, UNREACHABLE, BUSY, TIMED_OUT, NOT_READY = 1, 2, 3, 4, 5, 6
NO_DEVICE, ENGINE_LOST, ADDRESS_TAKEN, BAD_CONFIG = 69, 70, 75, 78
INTERRUPTED, BROKEN_PIPE = 130, 141


class Misused(HotReloadError):
    """The command's arguments make no sense."""

    code = "usage"


_CODES: tuple[tuple[type[HotReloadError], int], ...] = (
    (Misused, USAGE),
    (Unreachable, UNREACHABLE),
    (Busy, BUSY),
    (TimedOut, TIMED_OUT),
    (NotReady, NOT_READY),
    (DeviceUnavailable, NO_DEVICE),
    (EngineLost, ENGINE_LOST),
    (AddressTaken, ADDRESS_TAKEN),
    (ConfigError, BAD_CONFIG),
)


_STATES = {"booting": NOT_READY, "stopping": NOT_READY, "lost": ENGINE_LOST}
"""The states in which no request is answered."""


def check_code(status: Mapping[str, Any], findings: Sequence[object]) -> int:
    """Return the exit code of `hotreload status --check`: 0 if there is no fault."""
    return _STATES.get(status["state"], FAILED if findings else 0)


def exit_code(error: HotReloadError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
