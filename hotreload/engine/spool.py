"""A private copy of a checkpoint: only verified bytes, in a folder nobody else writes to.

The engine's loader reads through mmap: a file truncated under it kills the process, one
rewritten in place changes weights after they were checked.
"""

import errno
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from hotreload import failpoints
from hotreload.errors import CheckpointCorrupt, NotEnoughMemory
from hotreload.types import Checkpoint, CheckpointFile

PREFIX = "stage-"
CHUNK = 8 << 20
READ_TRIES = 4
FIRST_PAUSE = 0.05

_MAY_PASS = (errno.EIO, errno.ESTALE)
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Faults of this process or machine, which say nothing about a checkpoint."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Cancelled(Exception):
    """The one who wanted the copy wants it no more."""


def clear_leftovers(spool: Path) -> None:
    """Make the spool folder, and remove what a process that was killed left in it."""
    spool.mkdir(parents=True, exist_ok=True)
    for left in spool.glob(f"{PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def private_copy(checkpoint: Checkpoint, spool: Path, cancel: threading.Event) -> Iterator[Path]:
    """A folder with the checkpoint's checked files and no others, for as long as this is open.

    CheckpointCorrupt when a file is no longer what was checked, NotEnoughMemory when the
    spool folder is full.
    """
    folder = _made(spool)
    try:
        _check_room(checkpoint, spool)
        failpoints.reach_in_thread("copying")
        for file in checkpoint.files:
            _copy(checkpoint.path, file, folder, cancel)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(spool: Path) -> Path:
    try:
        spool.mkdir(parents=True, exist_ok=True)  # whoever cleans up may have taken it
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=spool))
    except OSError as fault:
        raise NotEnoughMemory(
            f"{spool}: no private copy can be made there: {fault.strerror}", code="disk_full"
        ) from fault


def _check_room(checkpoint: Checkpoint, spool: Path) -> None:
    need, free = sum(file.size for file in checkpoint.files), shutil.disk_usage(spool).free
    if need > free:
        raise NotEnoughMemory(
            f"{spool} has {_gb(free)} free, the private copy of {checkpoint.revision} needs "
            f"{_gb(need)}: free some space there",
            code="disk_full",
        )


def _copy(source: Path, file: CheckpointFile, folder: Path, cancel: threading.Event) -> None:
    target = folder / file.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            _pour(source / file.name, file, out.write, cancel)
    except OSError as fault:
        if fault.errno in _OURS:
            raise NotEnoughMemory(f"{file.name} cannot be copied now: {fault.strerror}") from fault
        if fault.errno in _FULL:
            raise NotEnoughMemory(
                f"{folder.parent} cannot be written: {fault.strerror}", code="disk_full"
            ) from fault
        raise _unreadable(file, fault) from fault


def _pour(
    path: Path, file: CheckpointFile, write: Callable[[memoryview], object], cancel: threading.Event
) -> None:
    """Hand the file's bytes on, and be sure at the end that they are those that were checked."""
    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(min(CHUNK, max(1, file.size))))
    with _opened(path, file) as fd:
        at = 0
        while at < file.size:
            if cancel.is_set():
                raise Cancelled
            chunk = buffer[: _read(fd, buffer[: file.size - at], at, cancel)]
            if not chunk:
                raise _changed(file, f"ends at byte {at} of {file.size}")
            digest.update(chunk)
            write(chunk)
            at += len(chunk)
    if digest.hexdigest() != file.digest:
        raise _changed(file, "its bytes are others")


@contextmanager
def _opened(path: Path, file: CheckpointFile) -> Iterator[int]:
    # Not blocking: a fifo put in the file's place would hang the open for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode):
            raise _changed(file, "it is no regular file")
        if now.st_size != file.size:
            raise _changed(file, f"it has {now.st_size} bytes, not {file.size}")
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, into: memoryview, at: int, cancel: threading.Event) -> int:
    """Read once; a storage fault that may pass is tried again, a few times."""
    pause = FIRST_PAUSE
    for tries_left in reversed(range(READ_TRIES)):
        try:
            return os.preadv(fd, [into], at)
        except OSError as fault:
            if fault.errno not in _MAY_PASS or not tries_left:
                raise
        cancel.wait(pause)
        pause *= 4
    raise AssertionError("the last try returns or raises")


def _unreadable(file: CheckpointFile, fault: OSError) -> CheckpointCorrupt:
    if fault.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return _changed(file, "it is gone")
    return CheckpointCorrupt(f"{file.name}: cannot be read: {fault.strerror}", code="io")


def _changed(file: CheckpointFile, how: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"{file.name} changed after it was checked: {how}", code="changed")


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
