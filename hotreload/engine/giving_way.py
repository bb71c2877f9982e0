"""Has threads that work beside those who serve leave processors and Python's lock to them."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LITTLE = 10
"""Niceness that leaves a tenth of a processor where others want it. With idle priority, and so no
processor, staging stood still beside our own compiling, or beside anybody at work, and tracing kept
Python's lock, which it has most of the time, from clients for longer."""
SWITCH_INTERVAL = 0.0005
"""Each return from a blocking call waits for the lock, up to this long; Python's own is 5 ms."""


class _Turns:
    """The process has one such interval, and those who shorten it end one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work = 0
        self._usual = 0.0

    @contextmanager
    def short(self) -> Iterator[None]:
        """Change how long a thread keeps the lock: short meanwhile, then as before."""
        with self._lock:
            if not self._at_work:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SWITCH_INTERVAL))
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    sys.setswitchinterval(self._usual)


short_turns = _Turns().short


def yield_processors() -> None:
    """Have this thread, for as long as it lives, take a tenth of a processor that others want."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LITTLE)
