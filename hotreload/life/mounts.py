"""Waits for what the settings name to be mounted: what is late must not end the start for good."""

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
    """Find what this machine is to mount on the way to a path, and has not; None for nothing.

    An automatic mount counts as missing while the path is: to look at it has not brought it.
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
    """The same, and an empty folder too: what is mounted by hand or by a script is in no table."""
    return planned_mount(path, fstab, mountinfo) or _empty_on_the_way(path)


def first_missing(paths: Iterable[Path | None]) -> Path | None:
    """Find what is to be mounted for the first of these paths that something is missing for."""
    missing = (missing_mount(path) for path in paths if path is not None)
    return next((each for each in missing if each is not None), None)


def _empty_on_the_way(path: Path) -> Path | None:
    """The path, or the nearest folder above it that is there, if it is empty or does not answer."""
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
    """Wait for the mount that the state lies on: what was written beneath it would be hidden.

    Nothing serves yet, so systemd and the log alone are told.
    """
    notifier, missing = Notifier(), None
    while (late := await read_from_disk(state, partial(planned_mount, state))) is not None:
        if late != missing:
            log_missing_mount(late, f"[state] directory: {state}")
        missing = late
        notifier.send(f"STATUS=starting: waiting for {late} to be mounted", extension())
        await asyncio.sleep(MOUNT_SECONDS)


def log_missing_mount(mount: Path, why: str) -> None:
    """Write to the log what is waited for."""
    todo = f"mount it (systemctl list-units --type=mount; mount {mount}), or mend the setting"
    log.warning("boot.not_mounted", extra={"path": str(mount), "why": why, "todo": todo})
