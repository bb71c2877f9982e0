"""Kills all processes of a session, also those that are in process groups of their own."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOOK_AGAIN_SECONDS = 0.02
"""Seconds between two looks: who is killed needs a moment, and may have begun others meanwhile."""
STATE_FIELD, SESSION_FIELD = 0, 3
"""Fields of the kernel's line about a process, after its name."""
HAS_ENDED = "ZX"


def kill_session(leader: int, within: float) -> list[int]:
    """Kill those in the session of this process until nobody is left; return who still is. Blocks.

    The leader may have ended, but nobody may have waited for it: so its number stays its own.
    """
    until = time.monotonic() + within
    while (left := [*_killed(leader)]) and time.monotonic() < until:
        time.sleep(LOOK_AGAIN_SECONDS)
    return left


def _killed(session: int) -> Iterator[int]:
    """Kill each as it is found: its number is nobody else's so soon."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and _is_of(int(name), session):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(name), signal.SIGKILL)
            yield int(name)


def _is_of(pid: int, session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[STATE_FIELD] not in HAS_ENDED and int(fields[SESSION_FIELD]) == session
