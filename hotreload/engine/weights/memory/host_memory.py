"""Measures the free memory of the host; imports no JAX, since `hotreload doctor` asks too."""

from collections.abc import Iterator
from pathlib import Path


def host_bytes_free(pid: object = "self") -> int:
    """Return the bytes that a process may still take, by the machine and its control groups.

    A unit's MemoryMax= and a container's limit do not show in /proc/meminfo; a process that
    exceeds them is killed.
    """
    return min([machine_bytes_free(), *free_in_groups(*groups_of(pid))])


def machine_bytes_free() -> int:
    """Return the bytes that the machine has free, whatever a process may take of them."""
    return _of_the_machine("MemAvailable")


def host_bytes() -> int:
    """Return the bytes that this process's control group may hold, or else the machine's."""
    limits = (_limit_of(each) for each in control_groups(*groups_of("self")))
    return min([_of_the_machine("MemTotal"), *(limit for limit in limits if limit is not None)])


def _of_the_machine(field: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) * 1024


def groups_of(pid: object) -> tuple[Path, Path]:
    """Return the file that names a process's control group, and the folder of all groups."""
    return Path(f"/proc/{pid}/cgroup"), Path("/sys/fs/cgroup")


def free_in_groups(membership: Path, tree: Path) -> Iterator[int]:
    """Yield the bytes free below each limit from a control group (version 2) up to the root."""
    for group in control_groups(membership, tree):
        yield from _free_in(group)


def control_groups(membership: Path, tree: Path) -> Iterator[Path]:
    """Yield each control group that may limit a process, up to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for name in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        group = tree / name
        for each in (group, *group.parents):
            if each.is_relative_to(tree):
                yield each


def _limit_of(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
    except OSError:  # the root group has no limit, and version 1 no such file
        return None
    return None if limit == "max" else int(limit)


def _free_in(group: Path) -> Iterator[int]:
    if (limit := _limit_of(group)) is None:
        return
    try:
        used = int((group / "memory.current").read_text())
        kept = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # it has gone meanwhile
        return
    cached = sum(int(size) for name, size in kept if name == "inactive_file")
    yield limit - used + cached
