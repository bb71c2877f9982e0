"""What to start with: the last good generation, else the newest good checkpoint, else the model.

So neither a power cut loses a good checkpoint nor a bad one makes a restart loop.
"""

import asyncio
import atexit
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from hotreload.checks.files import content_id, survey
from hotreload.checks.fit import served_by
from hotreload.config import Settings
from hotreload.core.ledger import Ledger, Place
from hotreload.core.ports import Source
from hotreload.core.reconcile import default_backoff
from hotreload.core.threads import in_thread
from hotreload.engine.boot import DOES_NOT_START
from hotreload.engine.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.spool import clear_leftovers, private_copy
from hotreload.errors import (
    CheckpointRejected,
    ConfigError,
    EngineLost,
    HotReloadError,
    NotEnoughMemory,
    SourceUnavailable,
    TryAgain,
)
from hotreload.types import Checkpoint, Generation, Reason, Revision, Served

log = logging.getLogger("hotreload.boot")

FIRST_ANSWER_SECONDS = 900.0
"""The first answer compiles the model, which takes minutes on an accelerator."""

RANDOM = Revision("random", "random weights")
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")

Check = Callable[[Revision, Path], Awaitable[Checkpoint]]


async def model_folder(
    settings: Settings, ledger: Ledger, source: Source
) -> tuple[Path, Revision | None]:
    """The folder whose config and tokenizer the engine runs with.

    And the first wish, if that is what lies there. It is the newest of this start: to ask once
    more would fetch the next commit of a hub, too, and keep that one instead of the model.
    """
    configured = settings.engine.model
    model, wish = (configured, None) if configured else await _model_from(source, ledger)
    if not (model / "config.json").is_file():
        raise ConfigError(f"[engine] model: {model} is no model folder: it has no config.json")
    return model, wish


async def _model_from(source: Source, ledger: Ledger) -> tuple[Path, Revision | None]:
    """Without a model of the operator's: the last good generation, else the first wish."""
    last = ledger.last_good
    if last is not None:
        folder = await _folder_of(last, source)
        if (folder / "config.json").is_file():
            return folder, None
    for failures in count(1):
        try:
            async for revision in source.wanted():
                return await source.fetch(revision), revision
        except (TryAgain, CheckpointRejected) as fault:
            log.warning("boot.no_model_yet", extra={"why": str(fault)})
            pause = max(default_backoff(failures), getattr(fault, "retry_after", None) or 0.0)
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: counting has no end")


async def _folder_of(place: Place, source: Source) -> Path:
    """Where a generation's files lie; a source may bring back what was cleaned away."""
    folder = Path(place.path)
    if not await _reading(folder, folder.exists):
        try:
            return await source.fetch(place.revision)
        except HotReloadError as gone:
            why = {"path": place.path, "why": str(gone)}
            log.warning("boot.last_good_is_gone", extra=why)
    return folder


async def served_from(model: Path) -> Served:
    """What an engine with this model serves: the measure of every checkpoint."""
    try:
        return await _reading(model, lambda: served_by(model))
    except CheckpointRejected as unfit:
        raise ConfigError(f"[engine] model: {model} cannot be served: {unfit}") from unfit


async def first_engine[E](
    boot: str,
    *,
    ledger: Ledger,
    source: Source,
    model: Path,
    check: Check,
    start: Callable[[Checkpoint | None], Awaitable[E]],
    first_wish: Revision | None = None,
) -> tuple[E, Checkpoint | None]:
    """An engine that runs, and the checked weights in it; None stands for random ones.

    What fails the checks is passed over, and so is what only the engine finds fault with: a
    later attempt at it is judged like any other. `first_wish` stands for the newest.
    """
    if boot == "dummy":
        return await start(None), None
    refusals = []
    async for revision, path, why in _candidates(boot, ledger, source, model, first_wish):
        try:
            checkpoint = await check(revision, path)
            log.info("boot.chosen", extra={"path": str(path), "why": why})
            return await start(checkpoint), checkpoint
        except (CheckpointRejected, SourceUnavailable, ConfigError) as fault:
            if isinstance(fault, ConfigError) and (fault.code != DOES_NOT_START or path == model):
                raise
            refusals.append(f"{why}, {path}: {fault}")
            log.warning("boot.passed_over", extra={"path": str(path), "why": str(fault)})
    raise ConfigError(
        "nothing to start with; put a sound checkpoint into [engine] model\n  "
        + "\n  ".join(refusals)
    )


async def _candidates(
    boot: str, ledger: Ledger, source: Source, model: Path, first_wish: Revision | None
) -> AsyncIterator[tuple[Revision, Path, str]]:
    place = ledger.last_good
    if boot == "last-good" and place is not None:
        yield place.revision, await _folder_of(place, source), "the last good generation"
    if boot == "last-good":
        try:
            newest = first_wish or await source.resolve(None)
            if newest.id not in ledger.refused and newest.id not in ledger.crashes:
                yield newest, await source.fetch(newest), "the newest checkpoint"
        except HotReloadError as nothing:
            log.info("boot.no_checkpoint_yet", extra={"why": str(nothing)})
    yield await _revision_of(model), model, "the configured model"


async def _revision_of(model: Path) -> Revision:
    looked = await _reading(model, lambda: survey(model))
    if looked.waiting_for is not None:
        raise ConfigError(f"[engine] model: {model} holds no weights: {looked.waiting_for}")
    return Revision(await _reading(model, lambda: content_id(looked)), model.name)


async def start_engine(settings: Settings, model: Path, weights: Checkpoint | None) -> SglangEngine:
    """Start the engine the settings describe: the model's config and tokenizer, these weights."""
    need = sum(file.size for file in weights.files) if weights else 0
    copies = await asyncio.to_thread(_folder_for_copies, settings.state.directory, need)
    spool, first = copies / "staging", copies / "boot"
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
    with ExitStack() as made:
        assemble = partial(_assemble, made, model, weights, first)
        try:
            folder = await in_thread(assemble, leave_as=f"the copying of {weights.revision}")
        except NotEnoughMemory as full:
            raise ConfigError(f"nothing can be loaded: {full}") from full
        return await start(model=folder, revision=weights.revision)


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


async def _reading[T](model: Path, read: Callable[[], T]) -> T:
    return await in_thread(lambda cancel: read(), leave_as=f"a read of {model}")


def _assemble(
    copies: ExitStack, model: Path, weights: Checkpoint, spool: Path, cancel: threading.Event
) -> Path:
    """A private folder with the model's config and tokenizer and the checked weights.

    The engine reads through mmap, so what it starts from must be files nobody else writes to;
    the folder goes when the engine has started.
    """
    folder = copies.enter_context(private_copy(weights, spool, cancel))
    for file in model.iterdir():
        if file.is_file() and ".safetensors" not in file.name and file.suffix not in OTHER_WEIGHTS:
            shutil.copyfile(file, folder / file.name)
    return folder


async def first_generation(
    engine: SglangEngine,
    *,
    path: Path | None,
    model: Path,
    ledger: Ledger,
    save: Callable[[Ledger], Awaitable[None]],
) -> Generation:
    """Probe what the engine started with, record it, and return it as what is live."""
    staged = engine.live
    try:
        if path is not None:  # random weights have no answers to be judged by
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
    is_newest = last and last.number == ledger.next_number - 1  # or numbers would fall
    live = Generation(
        last.number if last and is_known and is_newest else ledger.next_number,
        staged.revision,
        staged.fingerprint,
        time.time(),
        staged.leaves,
        staged.bytes,
    )
    ledger.abandon()
    ledger.crashes.pop(staged.revision.id, None)
    ledger.went_live(live, str(path or ""))
    await save(ledger)
    return live
