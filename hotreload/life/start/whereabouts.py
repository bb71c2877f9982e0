"""Looks whether a checkpoint's files, and the disks that settings name, are there.

A look goes by names, sizes and times, and never hangs with a dead mount. A start waits for a late
mount.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Source
from hotreload.errors import CheckpointRejected, HotReloadError, SourceUnavailable
from hotreload.facts.files import MOUNTINFO, mounts, unescape
from hotreload.observe.systemd import Notifier, extension
from hotreload.sources.place import comes_after
from hotreload.sources.settings import Ordering
from hotreload.threads import deadline, in_thread, left_behind
from hotreload.types import Revision, holds_weights

log = logging.getLogger("hotreload.boot")

FSTAB = Path("/etc/fstab")
MOUNT_SECONDS = 2.0
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


def planned_mount(path: Path, fstab: Path = FSTAB, mountinfo: Path = MOUNTINFO) -> Path | None:
    """Find a mount point on the way to a path that is configured and not mounted; None without.

    An automatic mount counts as missing while the path is: looking at the path did not mount it.
    """
    planned, there = set(_list_planned(fstab)), dict(mounts(_text(mountinfo)))
    for each in (path, *path.parents):
        is_automatic = there.get(each) == "autofs" and not path.exists()
        if is_automatic or (each in planned and each not in there):
            return each
        if each in there:
            return None
    return None


def missing_mount(path: Path) -> Path | None:
    """Find a missing mount, or an empty folder: a mount by hand or script is in no table."""
    return planned_mount(path) or _empty_on_the_way(path)


def first_missing(paths: Iterable[Path | None]) -> Path | None:
    """Find the missing mount of the first of these paths that lacks one."""
    missing = (missing_mount(path) for path in paths if path is not None)
    return next((each for each in missing if each is not None), None)


def _empty_on_the_way(path: Path) -> Path | None:
    """Return the path, or the nearest folder above, if that is empty or does not answer."""
    for each in (path, *path.parents):
        try:
            with os.scandir(each) as entries:
                return each if next(entries, None) is None else None
        except FileNotFoundError:
            continue
        except (PermissionError, NotADirectoryError):
            return None
        except OSError:  # its server is away
            return each
    return None


def _list_planned(fstab: Path) -> Iterator[Path]:
    for line in _text(fstab).splitlines():
        fields = line.split()
        if len(fields) > 1 and not line.startswith("#") and fields[1].startswith("/"):
            yield Path(unescape(fields[1]))


def _text(table: Path) -> str:
    try:
        return table.read_text(errors="replace")
    except OSError:
        return ""


async def wait_for_mount(missing: Path, look: Callable[[], Awaitable[Path | None]]) -> None:
    """Wait until something else is missing, or nothing."""
    while await look() == missing:  # noqa: ASYNC110 no event tells of a mount
        await asyncio.sleep(MOUNT_SECONDS)


async def wait_for_state_mount(state: Path) -> None:
    """Wait for the mount of the state folder: files written beneath it would be hidden.

    Only systemd and the log get a message: nothing serves yet.
    """
    notifier, missing = Notifier(), None
    while (late := await read_from_disk(state, partial(planned_mount, state))) is not None:
        if late != missing:
            log_missing_mount(late, f"[state] directory: {state}")
        missing = late
        notifier.send(f"STATUS=starting: waiting for {late} to be mounted", extension())
        await asyncio.sleep(MOUNT_SECONDS)


def log_missing_mount(mount: Path, why: str) -> None:
    """Write the missing mount to the log."""
    todo = f"mount it (systemctl list-units --type=mount; mount {mount}), or mend the setting"
    log.warning("boot.not_mounted", extra={"path": str(mount), "why": why, "todo": todo})
