"""Private copies of the files that an engine is made from, which no other process writes to.

Upstream's loader maps them. If our own loader reads the weights, only the small files are copied.
"""

import asyncio
import atexit
import logging
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from hotreload.core.progress import AttemptProgress, publish_progress
from hotreload.engine.weights.load.spool import FULL, clear_leftovers, private_copy, private_folder
from hotreload.errors import ConfigError, NotEnoughMemory
from hotreload.life.start.model_files import copy_side_files
from hotreload.threads import deadline, in_thread
from hotreload.types import Checkpoint, HowFar, Phase

log = logging.getLogger("hotreload.boot")


async def place_for_copies(state: Path, weights: Checkpoint | None) -> Path:
    """Return the state folder, or a temporary one if its disk is full or read-only.

    Without weights to copy hardly any room is needed.
    """
    return await asyncio.to_thread(_place, state, _size_of(weights))


def _size_of(weights: Checkpoint | None) -> int:
    return sum(file.size for file in weights.weight_files) if weights else 0


@asynccontextmanager
async def copy_privately(
    model: Path, weights: Checkpoint | None, place: Path, within: float, progress: AttemptProgress
) -> AsyncIterator[Path]:
    """Copy a model's small files, and these weights; the copy goes at the end of the block."""
    so_far, what = _SoFar(_size_of(weights)), progress.revision
    spool = place / "boot"
    with ExitStack() as copies:

        def assemble(cancel: threading.Event) -> Path:
            """Make the folder; it is removed when the engine has started."""
            if weights is None:
                made = private_folder(spool)
            else:
                made = private_copy(weights, spool, cancel, so_far.note)
            folder = copies.enter_context(made)
            _copy_small_files(model, folder, spool)
            return folder

        try:
            async with (
                progress.phase(Phase.STAGING),
                publish_progress(lambda: so_far.now, what, progress.publish),
                deadline(within, f"copying {what}", "[reload] stage_timeout"),
            ):
                folder = await in_thread(assemble, leave_as=f"the copying of {what}")
        except NotEnoughMemory as full:
            raise ConfigError(f"nothing can be loaded: {full}") from full
        yield folder


class _SoFar:
    """Counts the bytes copied, in the copying thread."""

    def __init__(self, of: int) -> None:
        self.now = HowFar(0, of)

    def note(self, piece: int) -> None:
        """Add copied bytes."""
        self.now = HowFar(self.now.done + piece, self.now.of)


def _copy_small_files(model: Path, folder: Path, spool: Path) -> None:
    try:
        copy_side_files(model, folder)
    except PermissionError as closed:
        words = f"[engine] model: {closed.filename} may not be read by this user"
        raise ConfigError(f"{words}; open it (chmod a+r)") from closed
    except OSError as fault:
        if fault.errno not in FULL:
            raise
        words = f"{spool} cannot be written: {fault.strerror}"
        raise NotEnoughMemory(words, code="disk_full") from fault


def _place(state: Path, need: int) -> Path:
    try:
        for name in ("staging", "boot"):
            clear_leftovers(state / name)
        with tempfile.TemporaryFile(dir=state / "boot"):
            free = shutil.disk_usage(state).free
        why = "" if free > need else f"{free} bytes are free there, a copy needs {need}"
    except OSError as error:
        why = str(error)
    if not why:
        return state
    folder = Path(tempfile.mkdtemp(prefix="hotreload-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log.warning("boot.copies_elsewhere", extra={"path": str(folder), "why": why})
    for name in ("staging", "boot"):
        clear_leftovers(folder / name)
    return folder
