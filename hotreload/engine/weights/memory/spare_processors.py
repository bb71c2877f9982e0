"""Tells how many threads of long work a machine has processors for, beside those who serve."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hotreload.engine.weights.memory.host_memory import control_groups, groups_of

MOST = 8
"""By then the memory or the files are what is waited for."""

Threads = int | Literal["auto"]


def counted(threads: Threads, priority: str) -> int:
    """The number of threads that was asked for, or that the machine has processors to spare for.

    Threads of idle priority leave others nine tenths, unless a limit counts what those take too.
    """
    if threads != "auto":
        return threads
    there = len(os.sched_getaffinity(0))
    allowed = min([there, *limits(*groups_of("self"))])
    spare = there if priority == "idle" and allowed == there else allowed // 2
    return max(1, min(int(spare), MOST))


def limits(membership: Path, tree: Path) -> Iterator[float]:
    """Processors that each control group (version 2) allows, on the way to the root."""
    for group in control_groups(membership, tree):
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:  # the root group has no limit
            continue
        if quota != "max":
            yield int(quota) / int(period)
