"""Waits until the disks that settings name are mounted: a late mount must not end the start."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from hotreload.facts.mount_table import MOUNTINFO, mounts, unescape
from hotreload.life.start.whereabouts import read_from_disk
from hotreload.observe.systemd import Notifier, extension

log = logging.getLogger("hotreload.boot")

FSTAB = Path("/etc/fstab")
MOUNT_SECONDS = 2.0


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


def missing_mount(path: Path, fstab: Path = FSTAB, mountinfo: Path = MOUNTINFO) -> Path | None:
    """Find a missing mount, or an empty folder: a mount by hand or script is in no table."""
    return planned_mount(path, fstab, mountinfo) or _empty_on_the_way(path)


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
