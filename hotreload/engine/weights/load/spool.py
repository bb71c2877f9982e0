"""A private copy of a checkpoint's weights: verified bytes, in a folder of this daemon alone.

The engine's loader reads through mmap: a file truncated under it kills the process, one
rewritten in place changes weights after they were checked.
"""

import errno
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

from hotreload import failpoints
from hotreload.checkpoint.file_reader import OURS, Changed, HashedPieces, NotRegular, join_digests
from hotreload.checkpoint.known_names import SINGLE
from hotreload.engine.weights.load.checked_bytes import changed_error, open_checked, unreadable
from hotreload.errors import NotEnoughMemory, TryAgain
from hotreload.types import IN_MEMORY, Checkpoint, CheckpointFile

COPY_PREFIX = "stage-"
COPIED_AT_A_TIME = 8 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Faults of a disk that takes no more."""


def clear_leftovers(spool: Path) -> None:
    """Make the spool folder, and remove what a process that was killed left in it."""
    spool.mkdir(parents=True, exist_ok=True)
    for left in spool.glob(f"{COPY_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def private_copy(
    checkpoint: Checkpoint,
    spool: Path,
    cancel: threading.Event,
    report: Callable[[int], None] = lambda size: None,
) -> Iterator[Path]:
    """Copy the checked weights and their index into a folder that lasts as long as the context.

    The checkpoint's other files are left out: with them the engine would answer otherwise than
    with the model's own. `report` is given the number of bytes of each piece that was copied.

    CheckpointChanged when a file is no longer what was checked, NotEnoughMemory when the
    spool folder is full.
    """
    with private_folder(spool) as folder:
        _check_room(checkpoint, spool)
        failpoints.reach_in_thread("reading")
        for file in checkpoint.weight_files:
            _copy(checkpoint, file, folder, cancel, report)
        yield folder


@contextmanager
def private_folder(spool: Path) -> Iterator[Path]:
    """An empty folder in the spool folder, for as long as this is open; TryAgain without that."""
    folder = _make_folder(spool)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(spool: Path) -> Path:
    try:
        spool.mkdir(parents=True, exist_ok=True)  # somebody's clean-up may have removed it
        return Path(tempfile.mkdtemp(prefix=COPY_PREFIX, dir=spool))
    except OSError as fault:
        words = f"{spool}: no private copy can be made there: {fault.strerror}"
        if fault.errno in FULL:
            raise NotEnoughMemory(words, code="disk_full") from fault
        todo = "make [state] directory a folder that this user may write to"
        raise TryAgain(f"{words}; {todo}", code="no_copy") from fault


def _check_room(checkpoint: Checkpoint, spool: Path) -> None:
    need = sum(file.size for file in checkpoint.weight_files)
    free = shutil.disk_usage(spool).free
    if need > free:
        raise NotEnoughMemory(
            f"{spool} has {_gb(free)} free, the private copy of {checkpoint.revision} needs "
            f"{_gb(need)}: free some space there",
            code="disk_full",
        )


def _copy(
    checkpoint: Checkpoint,
    file: CheckpointFile,
    folder: Path,
    cancel: threading.Event,
    report: Callable[[int], None],
) -> None:
    # The file that tensors in memory make is one that the engine's loader looks for.
    target = folder / (SINGLE if file.name == IN_MEMORY else file.name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            _pour(checkpoint, file, lambda piece: report(out.write(piece)), cancel)
    except NotRegular as trap:
        raise changed_error(file.name, f"it is {trap}") from trap
    except Changed as how:
        raise changed_error(file.name, str(how)) from how
    except OSError as fault:
        if fault.errno in OURS:
            raise NotEnoughMemory(f"{file.name} cannot be copied now: {fault.strerror}") from fault
        if fault.errno in FULL:
            raise NotEnoughMemory(
                f"{folder.parent} cannot be written: {fault.strerror}", code="disk_full"
            ) from fault
        raise unreadable(file.name, fault) from fault


def _pour(
    checkpoint: Checkpoint,
    file: CheckpointFile,
    write: Callable[[memoryview], object],
    cancel: threading.Event,
) -> None:
    """Hand the file's bytes on, and make sure at the end that they are those that were checked.

    The bytes are hashed as they pass, even if the file looks untouched: the copy must be right.
    """
    with closing(open_checked(checkpoint, file.name, cancel)) as source:
        if source.identity.size != file.size:
            raise Changed(f"it has {source.identity.size} bytes, not {file.size}")
        digests = list[str]()
        for begin, end in pairwise([0, *_ends(checkpoint, file)]):
            hashing = HashedPieces(source, min(COPIED_AT_A_TIME, end - begin), cancel)
            for _, piece in hashing.pieces(begin, end):
                write(piece)
            digests.append(hashing.digest())
    if join_digests(digests) != file.digest:
        raise Changed("its bytes are different now")


def _ends(checkpoint: Checkpoint, file: CheckpointFile) -> list[int]:
    """The places at which a file's head ends, and each tensor behind it; of others, its end."""
    tensors = sorted((t.begin, t.end) for t in checkpoint.held.values() if t.file == file.name)
    return [begin for begin, _ in tensors[:1]] + [end for _, end in tensors] or [file.size]


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
