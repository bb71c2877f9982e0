"""Looks whether a checkpoint's files are there, and never hangs with a dead mount.

It goes by their names, sizes and times.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Source
from hotreload.errors import CheckpointRejected, HotReloadError, SourceUnavailable
from hotreload.sources.place import comes_after
from hotreload.sources.settings import Ordering
from hotreload.threads import deadline, in_thread, left_behind
from hotreload.types import Revision, holds_weights

log = logging.getLogger("hotreload.boot")

DISK_SECONDS = 30.0
"""Seconds that a look at a folder may take before its disk counts as away."""

Files = tuple[tuple[str, int, int], ...]
"""The weight files of a folder: name, size and time; equal ones mean unchanged files."""


class Absent(Exception):
    """The files are not there, or cannot be looked at, and no checkpoint is at fault."""


async def read_from_disk[T](what: Path, read: Callable[[], T]) -> T:
    """Read from a disk in a thread, which is left behind if it hangs."""
    return await in_thread(lambda cancel: read(), leave_as=f"a read of {what}")


async def reject_on_fault[T](doing: Awaitable[T]) -> T:
    """Turn our own fault into CheckpointRejected: it must not end every start."""
    try:
        return await doing
    except (HotReloadError, Absent):
        raise
    except Exception as fault:
        log.exception("boot.internal_error")
        words = f"internal error in hotreload: {type(fault).__name__}: {fault}"
        raise CheckpointRejected(words, code="internal") from fault


async def files_in(folder: Path) -> Files:
    """List the weight files in a folder; Absent without any, as where a mount failed."""
    require_disks()
    try:
        async with deadline(DISK_SECONDS, f"a look at {folder}", "is its server there?"):
            files = await read_from_disk(folder, lambda: _files_in(folder))
    except SourceUnavailable as late:
        raise Absent(str(late)) from late
    if not files:
        raise Absent(f"{folder} is gone")
    return files


def require_disks() -> None:
    """Raise Absent while an earlier look still hangs: the next would hang, too."""
    if (hangs := left_behind()) is not None:
        raise Absent(f"{hangs} still hangs; is its server there?")


def _files_in(folder: Path) -> Files:
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if holds_weights(entry.name)]
        stats = [(entry.name, entry.stat()) for entry in named]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


async def source_has(source: Source, revision: Revision) -> bool:
    """Return True if the source has these bytes elsewhere than in their old folder."""
    for name in (revision.label, revision.id):
        with suppress(HotReloadError):
            if name and await source.resolve(name) == revision:
                return True
    return False


async def is_newer(order: Ordering, folder: Path, than: PastGeneration) -> bool:
    """Return True if a checkpoint comes after one that was live; Absent if its files are gone."""
    written = 0.0
    if order == "time":
        written = max(time for _, _, time in await files_in(folder)) / 1e9
    return comes_after(order, folder, written, than)
