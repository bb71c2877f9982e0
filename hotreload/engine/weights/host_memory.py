"""Measures the free memory of the host; imports no JAX, since `hotreload doctor` asks too."""

from collections.abc import Iterator
from pathlib import Path


def host_bytes_free(pid: object = "self") -> int:
    """The bytes a process may still take: of the machine, and of each group that limits it.

    A unit's MemoryMax= and a container's limit do not show in /proc/meminfo; a process that goes
    over them is killed.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *free_in_groups(Path(f"/proc/{pid}/cgroup"), Path("/sys/fs/cgroup"))])


def free_in_groups(membership: Path, tree: Path) -> Iterator[int]:
    """Bytes free below each limit on the way from a control group (version 2) to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for name in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        group = tree / name
        for each in (group, *group.parents):
            if each.is_relative_to(tree):
                yield from _free_in(each)


def _free_in(group: Path) -> Iterator[int]:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        kept = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # the root group has no limit, and version 1 no such files
        return
    if limit != "max":
        cached = sum(int(size) for name, size in kept if name == "inactive_file")
        yield int(limit) - used + cached
