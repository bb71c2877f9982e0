"""The age of this process, for those who measure from its beginning."""

import os
import time
from pathlib import Path

STARTED_FIELD = 19
"""Of the kernel's, after the name: clock ticks from its boot to the process's beginning."""


def seconds_since_exec() -> float:
    """Seconds since this process began, imports and all; 0 where the kernel does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    began = int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
