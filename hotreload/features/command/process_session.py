"""Kills all processes of a session, also those that are in process groups of their own.

As a program it is the guard of one session: it kills that once the process that began the guard is
gone. It imports nothing of ours, so it costs little.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

END_SECONDS = 5.0
"""The longest time for killing a session."""
LOOK_AGAIN_SECONDS = 0.02
"""Seconds between two looks: a killed process ends after a moment, and may have forked."""
STATE_FIELD, SESSION_FIELD = 0, 3
"""Fields of the kernel's line about a process, after its name."""
HAS_ENDED = "ZX"


def kill_session(leader: int, within: float) -> list[int]:
    """Kill the processes of this one's session, and return those that are left in time. Blocks.

    The leader may have ended, but must not be reaped: the kernel would give away its number.
    """
    until = time.monotonic() + within
    while (left := [*_kill_each(leader)]) and time.monotonic() < until:
        time.sleep(LOOK_AGAIN_SECONDS)
    return left


def _kill_each(session: int) -> Iterator[int]:
    """Kill each process of a session as it is found: its number is not given away so soon."""
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


def main() -> None:
    """Kill the named session once this program's input is closed."""
    sys.stdin.buffer.read()
    kill_session(int(sys.argv[1]), END_SECONDS)


if __name__ == "__main__":
    main()
