"""The processes that another one has begun."""

import os
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Those that run below it, whichever of its threads began them."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in found for child in _read(each).split()]


def workers_below(pid: int) -> list[int]:
    """Those that answer HTTP for it."""
    lines = {child: _read(Path(f"/proc/{child}/cmdline")) for child in children_of(pid)}
    return [child for child, line in lines.items() if b"worker_process" in line]


def is_there(pid: int) -> bool:
    """Whether it runs: one that has ended, and nobody has waited for, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # ended before it was opened, or read
        return False
    return state != "Z"


def sockets_of(pid: int) -> set[str]:
    """Those it has open; of one that ends meanwhile, those that were seen."""
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {each for each in found if each.startswith("socket:")}


def cpu_seconds_of(pid: int) -> float:
    """Seconds of the processor that a process has taken, with its threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(of_a_process: Path) -> bytes:
    """What the kernel tells; nothing where the thread or process has ended since it was found."""
    try:
        return of_a_process.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
