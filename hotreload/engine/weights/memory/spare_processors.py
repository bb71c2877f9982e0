"""Counts the threads of long work that a machine has processors for, beside those that serve."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hotreload.engine.weights.memory.host_memory import control_groups, groups_of

MOST = 8
"""The most threads: with more the memory or the files are the bottleneck."""

Threads = int | Literal["auto"]


def count_threads(threads: Threads, priority: str) -> int:
    """Return the configured number of threads, or for "auto" that of the spare processors.

    Threads of idle priority leave nine tenths to other threads, unless a limit of the control
    group counts their time too.
    """
    if threads != "auto":
        return threads
    there = len(os.sched_getaffinity(0))
    allowed = min([there, *limits(*groups_of("self"))])
    spare = there if priority == "idle" and allowed == there else allowed // 2
    return max(1, min(int(spare), MOST))


def limits(membership: Path, tree: Path) -> Iterator[float]:
    """Yield the processors that each control group (version 2) allows, up to the root."""
    for group in control_groups(membership, tree):
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:  # the root group has no limit
            continue
        if quota != "max":
            yield int(quota) / int(period)
