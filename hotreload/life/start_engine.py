"""Starts the engine the settings describe, from a private copy of the weights."""

import asyncio
import atexit
import logging
import shutil
import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.quiet import Quiet
from hotreload.engine.weights.sets import StagingTerms
from hotreload.engine.weights.spool import FULL, clear_leftovers, private_copy
from hotreload.errors import ConfigError, NotEnoughMemory
from hotreload.life.model_files import copy_side_files, keep_model
from hotreload.settings.load import Settings
from hotreload.threads import deadline, in_thread, uninterrupted
from hotreload.types import Checkpoint, Revision

log = logging.getLogger("hotreload.boot")

RANDOM = Revision("random", "random weights")


async def start_engine(settings: Settings, model: Path, weights: Checkpoint | None) -> SglangEngine:
    """Start the engine the settings describe: the model's config and tokenizer, these weights.

    What it was started with is the model of later starts, too, where none is configured.
    """
    engine = await _started(settings, model, weights)
    is_configured = settings.engine.model is not None
    try:
        await keep_model(model, settings.state.directory, is_configured=is_configured)
    except BaseException:  # a stop came meanwhile
        await uninterrupted(engine.close())
        raise
    return engine


async def _started(settings: Settings, model: Path, weights: Checkpoint | None) -> SglangEngine:
    within = settings.reload.stage_timeout
    need = sum(file.size for file in weights.weight_files) if weights else 0
    copies = await asyncio.to_thread(_folder_for_copies, settings.state.directory, need)
    spool, first = copies / "staging", copies / "boot"
    start = partial(
        SglangEngine.start,
        device=settings.engine.device,
        tp=settings.engine.tp,
        dtype=settings.engine.dtype,
        args=settings.engine.args,
        terms=_terms(settings, spool),
        probes=[Probe(**probe.model_dump()) for probe in settings.probe],
    )
    if weights is None:
        return await start(model=model, revision=RANDOM, load_format="dummy")
    with ExitStack() as made:
        assemble, what = partial(_assemble, made, model, weights, first), weights.revision
        try:
            async with deadline(within, f"copying {what}", "[reload] stage_timeout"):
                folder = await in_thread(assemble, leave_as=f"the copying of {what}")
        except NotEnoughMemory as full:
            raise ConfigError(f"nothing can be loaded: {full}") from full
        return await start(model=folder, revision=weights.revision, checkpoint=weights)


def _terms(settings: Settings, spool: Path) -> StagingTerms:
    engine = settings.engine
    quiet = Quiet(engine.staging_threads, engine.staging_priority, engine.staging_starve)
    drift = settings.checks.max_drift
    return StagingTerms(spool, drift, engine.loader, settings.reload.memory, quiet)


def _folder_for_copies(state: Path, need: int) -> Path:
    """The state folder, or a temporary one where its disk is full or takes no writing."""
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


def _assemble(
    copies: ExitStack, model: Path, weights: Checkpoint, spool: Path, cancel: threading.Event
) -> Path:
    """A private folder with the model's side files and the checked weights.

    The engine reads through mmap, so what it starts from must be files nobody else writes to;
    the folder goes when the engine has started.
    """
    folder = copies.enter_context(private_copy(weights, spool, cancel))
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
    return folder
