"""Says what it means that a checked file cannot be read any more, or is another one now."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hotreload.checkpoint.reading import OURS, Changed, NotRegular
from hotreload.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    HotReloadError,
    NotEnoughMemory,
)

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@contextmanager
def words_for(name: str) -> Iterator[None]:
    """Raise the faults of reading a checkpoint's file as what they say of the checkpoint."""
    try:
        yield
    except NotRegular as trap:
        raise changed(name, f"it is {trap}") from trap
    except Changed as how:
        raise changed(name, str(how)) from how
    except OSError as fault:
        if fault.errno in OURS:
            raise NotEnoughMemory(f"{name} cannot be read now: {fault.strerror}") from fault
        raise unreadable(name, fault) from fault


def unreadable(name: str, fault: OSError) -> HotReloadError:
    """The error for a file that cannot be read."""
    if fault.errno in _GONE:
        return changed(name, "it is gone")
    return CheckpointCorrupt(f"{name}: cannot be read: {fault.strerror}", code="io")


def changed(name: str, how: str) -> CheckpointChanged:
    """The error for a file that is no longer what was checked."""
    return CheckpointChanged(f"{name} changed after it was checked: {how}")
