"""The processes that another one has begun."""

from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Those that run below it, whichever of its threads began them."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in found for child in each.read_text().split()]


def workers_below(pid: int) -> list[int]:
    """Those that answer HTTP for it."""
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children_of(pid)}
    return [child for child, line in lines.items() if b"worker_process" in line]
