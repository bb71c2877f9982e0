"""Counts the bytes that are read of a checkpoint."""

import threading
from collections.abc import Callable

ReportBytes = Callable[[int], None]
"""Called with the number of bytes that have been read."""


class Count:
    """Counts the bytes that are read, and reports the total; threads share it."""

    def __init__(self, report: ReportBytes) -> None:
        self.total = 0
        self._report = report
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self.total += size
            self._report(self.total)
