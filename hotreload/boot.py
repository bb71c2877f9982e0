"""What to start with: the last good generation, else the newest good checkpoint, else the model.

So neither a power cut loses a good checkpoint nor a bad one makes a restart loop.
"""

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hotreload.checks.files import content_id, survey
from hotreload.checks.fit import served_by
from hotreload.config import Settings
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Source
from hotreload.core.reload import uninterrupted
from hotreload.engine.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.spool import clear_leftovers, private_copy
from hotreload.errors import CheckpointRejected, ConfigError, EngineLost, HotReloadError
from hotreload.types import Checkpoint, Generation, Reason, Revision, Served

log = logging.getLogger("hotreload.boot")

FIRST_ANSWER_SECONDS = 900.0
"""The first answer compiles the model, which takes minutes on an accelerator."""

RANDOM = Revision("random", "random weights")
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")

Check = Callable[[Revision, Path], Awaitable[Checkpoint]]


def model_folder(settings: Settings) -> Path:
    """The folder whose config and tokenizer the engine runs with."""
    model = settings.engine.model
    if model is None or not (model / "config.json").is_file():
        raise ConfigError(f"[engine] model: {model} is no model folder: it has no config.json")
    return model


async def served_from(model: Path) -> Served:
    """What an engine with this model serves: the measure of every checkpoint."""
    try:
        return await asyncio.to_thread(served_by, model)
    except CheckpointRejected as unfit:
        raise ConfigError(f"[engine] model: {model} cannot be served: {unfit}") from unfit


async def first_weights(
    boot: str, *, ledger: Ledger, source: Source, model: Path, check: Check
) -> Checkpoint | None:
    """The weights to start with, checked; None stands for random ones, which `dummy` asks for."""
    if boot == "dummy":
        return None
    refusals = []
    async for revision, path, why in _candidates(boot, ledger, source, model):
        try:
            checkpoint = await check(revision, path)
        except CheckpointRejected as rejected:
            refusals.append(f"{why}, {path}: {rejected}")
            log.warning("boot.passed_over", extra={"path": str(path), "why": str(rejected)})
            continue
        log.info("boot.chosen", extra={"path": str(path), "why": why})
        return checkpoint
    raise ConfigError(
        "nothing to start with; put a sound checkpoint into [engine] model\n  "
        + "\n  ".join(refusals)
    )


async def _candidates(
    boot: str, ledger: Ledger, source: Source, model: Path
) -> AsyncIterator[tuple[Revision, Path, str]]:
    place = ledger.last_good
    if boot == "last-good" and place is not None:
        yield place.revision, Path(place.path), "the last good generation"
    if boot == "last-good":
        try:
            newest = await source.resolve(None)
            if newest.id not in ledger.refused:
                yield newest, await source.fetch(newest), "the newest checkpoint"
        except HotReloadError as nothing:
            log.info("boot.no_checkpoint_yet", extra={"why": str(nothing)})
    yield await _revision_of(model), model, "the configured model"


async def _revision_of(model: Path) -> Revision:
    looked = await asyncio.to_thread(survey, model)
    if looked.waiting_for is not None:
        raise ConfigError(f"[engine] model: {model} holds no weights: {looked.waiting_for}")
    return Revision(await asyncio.to_thread(content_id, looked), model.name)


async def start_engine(settings: Settings, model: Path, weights: Checkpoint | None) -> SglangEngine:
    """Start the engine the settings describe: the model's config and tokenizer, these weights."""
    spool, first = settings.state.directory / "staging", settings.state.directory / "boot"
    start = partial(
        SglangEngine.start,
        device=settings.engine.device,
        tp=settings.engine.tp,
        dtype=settings.engine.dtype,
        args=settings.engine.args,
        spool=spool,
        probes=[Probe(**probe.model_dump()) for probe in settings.probe],
        max_drift=settings.checks.max_drift,
    )
    if weights is None:
        return await start(model=model, revision=RANDOM, load_format="dummy")
    clear_leftovers(first)
    with ExitStack() as copies:
        folder = await uninterrupted(asyncio.to_thread(_assemble, copies, model, weights, first))
        return await start(model=folder, revision=weights.revision)


def _assemble(copies: ExitStack, model: Path, weights: Checkpoint, spool: Path) -> Path:
    """A private folder with the model's config and tokenizer and the checked weights.

    The engine reads through mmap, so what it starts from must be files nobody else writes to;
    the folder goes when the engine has started.
    """
    folder = copies.enter_context(private_copy(weights, spool, threading.Event()))
    for file in model.iterdir():
        if file.is_file() and ".safetensors" not in file.name and file.suffix not in OTHER_WEIGHTS:
            shutil.copyfile(file, folder / file.name)
    return folder


async def first_generation(
    engine: SglangEngine,
    *,
    path: Path,
    model: Path,
    ledger: Ledger,
    save: Callable[[Ledger], Awaitable[None]],
) -> Generation:
    """Probe what the engine started with, record it, and return it as what is live."""
    staged = engine.live
    try:
        async with asyncio.timeout(FIRST_ANSWER_SECONDS):
            await engine.probe()
    except (CheckpointRejected, TimeoutError) as bad:
        reason = Reason("probe", str(bad) or f"no answer in {FIRST_ANSWER_SECONDS:g} s")
        if path == model:
            raise ConfigError(f"[engine] model: {model} fails the probe: {reason.message}") from bad
        ledger.refuse(staged.revision, reason, time.time())
        await save(ledger)
        # There is no older generation in memory: the next start passes this one over.
        raise EngineLost(f"what the engine started with is refused: {reason.message}") from bad
    last = ledger.last_good
    is_known = last and (last.revision, last.fingerprint) == (staged.revision, staged.fingerprint)
    live = Generation(
        last.number if last and is_known else ledger.next_number,
        staged.revision,
        staged.fingerprint,
        time.time(),
        staged.leaves,
        staged.bytes,
    )
    ledger.went_live(live, str(path))
    await save(ledger)
    return live
