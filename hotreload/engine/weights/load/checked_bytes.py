"""Opens the bytes of a checked checkpoint: a file of its folder, or memory.

Says what it means that they cannot be read any more, or are others now.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotreload.checkpoint.file_reader import OURS, Changed, NotRegular, OpenFile, Readable
from hotreload.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    HotReloadError,
    NotEnoughMemory,
)
from hotreload.types import Checkpoint

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def open_checked(checkpoint: Checkpoint, name: str, cancel: threading.Event) -> Readable:
    """The file of this name, to be read by one thread; the caller closes it."""
    if checkpoint.memory is not None:
        held: Readable = checkpoint.memory.open()
        return held
    return OpenFile(Path(os.path.realpath(checkpoint.path / name, strict=True)), name, cancel)


@contextmanager
def words_for(name: str) -> Iterator[None]:
    """Raise the faults of reading a checkpoint's file as what they say of the checkpoint."""
    try:
        yield
    except NotRegular as trap:
        raise changed_error(name, f"it is {trap}") from trap
    except Changed as how:
        raise changed_error(name, str(how)) from how
    except OSError as fault:
        if fault.errno in OURS:
            raise NotEnoughMemory(f"{name} cannot be read now: {fault.strerror}") from fault
        raise unreadable(name, fault) from fault


def unreadable(name: str, fault: OSError) -> HotReloadError:
    """The error for a file that cannot be read."""
    if fault.errno in _GONE:
        return changed_error(name, "it is gone")
    return CheckpointCorrupt(f"{name}: cannot be read: {fault.strerror}", code="io")


def changed_error(name: str, how: str) -> CheckpointChanged:
    """The error for a file that is no longer what was checked."""
    return CheckpointChanged(f"{name} changed after it was checked: {how}")
