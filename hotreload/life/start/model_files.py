"""A model's folder: its side files, what an engine with it serves, and what its answers depend on.

Side files are config, tokenizer and templates. Where no [engine] model is configured the first
checkpoint is the model, and stays it: its side files are kept in the state folder, so that a
restart answers as the life before it did.

Answers depend on the versions, the settings and the side files. Weights that were live and answer
badly now are to blame for it as little as they were before: if all of this is the same the probe is
to blame, or the machine; if not, what differs may be.
"""

import asyncio
import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import fields
from pathlib import Path

from hotreload.checkpoint import fit
from hotreload.checkpoint.known_names import CONFIG, SIDE_FILES
from hotreload.core.ledger import ServedBy
from hotreload.core.progress import AttemptProgress, publish_progress
from hotreload.engine.weights.load.spool import FULL, clear_leftovers, private_copy, private_folder
from hotreload.errors import CheckpointRejected, ConfigError, NotEnoughMemory
from hotreload.facts.files import put_folder
from hotreload.facts.upstream import version_of
from hotreload.life.start.whereabouts import read_from_disk, reject_on_fault
from hotreload.settings.sections import Settings
from hotreload.threads import deadline, in_thread
from hotreload.types import Checkpoint, HowFar, Phase, Served, holds_weights

log = logging.getLogger("hotreload.boot")

KEPT_MODEL = "model"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")


def digests_of_side_files(model: Path) -> Iterator[tuple[str, str]]:
    """Each file that a model's answers depend on beside the weights, and the digest of it."""
    for name in (CONFIG, *SIDE_FILES):
        try:
            yield name, hashlib.sha256((model / name).read_bytes()).hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as fault:
            words = f"[engine] model: {model / name} cannot be read: {fault.strerror}"
            raise ConfigError(words) from fault


def copy_side_files(model: Path, to: Path) -> None:
    """Copy all that an engine may read of a model folder, but for its weights."""
    for file in _side_files(model):
        shutil.copyfile(file, to / file.name)


def closed_at(path: Path) -> Path | None:
    """The folder on the way to this, or this itself, that may not be read; None if all may be."""
    real = Path(os.path.realpath(path))
    for each in (*reversed(real.parents), real):
        wanted = os.X_OK if each != real else os.R_OK | (os.X_OK if real.is_dir() else 0)
        if not _may(each, os.F_OK):
            return None  # it is not there at all
        if not _may(each, wanted):
            return each
    return None


def _may(path: Path, wanted: int) -> bool:
    return os.access(path, wanted, effective_ids=True)


def _side_files(model: Path) -> Iterator[Path]:
    for file in model.iterdir():
        if file.is_file() and not holds_weights(file.name) and file.suffix not in OTHER_WEIGHTS:
            yield file


def kept_model(state: Path) -> Path | None:
    """The folder of the side files that the last good generation was served with, if kept."""
    folder = state / KEPT_MODEL
    return folder if (folder / "config.json").is_file() else None


async def keep_model(model: Path, state: Path, *, is_configured: bool) -> None:
    """Keep the side files of the model that runs, but for one that the operator configured.

    A disk that refuses costs the memory, not the service.
    """
    try:
        await asyncio.to_thread(_keep, model, state / KEPT_MODEL, is_configured)
    except OSError as error:
        why = f"{error}; a restart may answer otherwise"
        log.warning("boot.model_not_kept", extra={"path": str(state / KEPT_MODEL), "why": why})


def _keep(model: Path, kept: Path, is_configured: bool) -> None:
    if model == kept:
        return
    if is_configured:  # what was kept before is out of date
        shutil.rmtree(kept, ignore_errors=True)
        return
    fresh = kept.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    copy_side_files(model, fresh)
    put_folder(fresh, kept)


# --- what is served, and by what ------------------------------------------------------------------

UNFIT_MODEL = "unfit_model"
"""The code of a ConfigError that another model folder would mend."""

CAUSES = {
    "sglang_jax": "sglang-jax",
    "jax": "jax",
    "dtype": "[engine] dtype",
    "tp": "[engine] tp",
    "args": "[engine.args]",
    "files": "the model's config or tokenizer",
}


async def find_served_model(model: Path) -> Served:
    """Find what an engine with this model serves: every checkpoint is checked against it."""
    closed = await read_from_disk(model, lambda: closed_at(model))
    if closed is not None:
        words = f"[engine] model: {model} may not be read: {closed} is closed to this user"
        raise ConfigError(f"{words}; open it (chmod a+rX {closed})", code=UNFIT_MODEL)
    if not await read_from_disk(model, (model / "config.json").is_file):
        words = f"[engine] model: {model} is no model folder: it has no config.json"
        raise ConfigError(words, code=UNFIT_MODEL)
    try:
        return await reject_on_fault(read_from_disk(model, lambda: fit.read_served_model(model)))
    except CheckpointRejected as unfit:
        words = f"[engine] model: {model} cannot be served: {unfit}"
        raise ConfigError(words, code=UNFIT_MODEL) from unfit


async def served_by_now(settings: Settings, model: Path) -> ServedBy:
    """Gather what a start with this model's folder serves by."""
    return await in_thread(
        lambda cancel: _served_by(settings, model), leave_as=f"a read of {model}'s small files"
    )


def _served_by(settings: Settings, model: Path) -> ServedBy:
    engine = settings.engine
    return ServedBy(
        sglang_jax=version_of("sglang-jax"),
        jax=version_of("jax"),
        dtype=engine.dtype,
        tp=engine.tp,
        args=_digest(sorted(engine.args.items())),
        files=_digest(list(digests_of_side_files(model))),
        model=str(model),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def changes(before: ServedBy, now: ServedBy) -> str:
    """Say in what these differ; empty when in nothing."""
    return ", ".join(_changes(before, now))


def _changes(before: ServedBy, now: ServedBy) -> Iterator[str]:
    for field in fields(ServedBy):
        was, is_now = getattr(before, field.name), getattr(now, field.name)
        if not field.compare or was == is_now:
            continue
        if field.name == "files":
            yield f"{CAUSES['files']} (model folder {before.model} then, {now.model} now)"
        elif field.name == "args":
            yield f"{CAUSES['args']} are others"
        else:
            yield f"{CAUSES[field.name]} {was} then, {is_now} now"


# --- private copies of the files that an engine is made from --------------------------------------


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
