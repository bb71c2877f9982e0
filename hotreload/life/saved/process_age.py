"""The age of this process."""

import os
import time
from pathlib import Path

STARTED_FIELD = 19
"""Of the kernel's, after the name: clock ticks from its boot to the process's beginning."""


def seconds_since_exec() -> float:
    """Return the seconds since this process began, imports included; 0 where unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    began = int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
