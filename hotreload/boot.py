"""What to start with: the last good generation, else the newest good checkpoint, else the model.

So neither a power cut loses a good checkpoint nor a bad one makes a restart loop.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from itertools import count
from pathlib import Path

from hotreload.checks.files import content_id, survey
from hotreload.checks.fit import served_by
from hotreload.config import Settings
from hotreload.core.ledger import Ledger, Place
from hotreload.core.ports import Source
from hotreload.core.reconcile import default_backoff
from hotreload.core.threads import deadline, in_thread
from hotreload.engine.boot import DOES_NOT_START
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import (
    BadRequest,
    CheckpointRejected,
    ConfigError,
    EngineLost,
    HotReloadError,
    TryAgain,
)
from hotreload.types import Checkpoint, Generation, Reason, Revision, Served

log = logging.getLogger("hotreload.boot")

FIRST_ANSWER_SECONDS = 900.0
"""The first answer compiles the model, which takes minutes on an accelerator."""

UNFIT_MODEL = "unfit_model"
"""The code of faults that another model folder would not have."""

Check = Callable[[Revision, Path], Awaitable[Checkpoint]]


async def first_start[E](
    settings: Settings,
    *,
    ledger: Ledger,
    source: Source,
    serve: Callable[[Served], None],
    check: Check,
    start: Callable[[Path, Checkpoint | None], Awaitable[E]],
    tell: Callable[[str], None],
) -> tuple[E, Checkpoint | None]:
    """An engine that runs, on the operator's model, or on the first wish that will do.

    `serve` hears what the checks are to hold a checkpoint against, `tell` what is done now.
    """
    tell("waiting for the model's files")
    async with aclosing(models(settings, ledger, source)) as found:
        async for model, first_wish in found:
            tell("checking the weights to start with")
            try:
                serve(await served_from(model))
                return await first_engine(
                    settings,
                    ledger=ledger,
                    source=source,
                    model=model,
                    check=check,
                    start=partial(start, model),
                    first_wish=first_wish,
                )
            except ConfigError as unfit:
                if settings.engine.model is not None or unfit.code != UNFIT_MODEL:
                    raise
                log.warning("boot.no_model_yet", extra={"why": str(unfit)})
                tell("waiting for a checkpoint that can be served")
    raise ConfigError("the source ended before anything could be served")


async def models(
    settings: Settings, ledger: Ledger, source: Source
) -> AsyncGenerator[tuple[Path, Revision | None]]:
    """Folders whose config and tokenizer the engine may run with, until one will do.

    The operator's alone, if there is one. Else the last good generation's, then each wish of the
    source. A wish comes with its folder: it is the newest of this start, as to ask once more
    would fetch the next commit of a hub, too, and keep that one instead of the model.
    """
    if settings.engine.model is not None:
        yield settings.engine.model, None
        return
    within = settings.reload.fetch_timeout
    if ledger.last_good is not None:
        yield await _folder_of(ledger.last_good, source, within), None
    async with aclosing(_wishes(ledger, source, within)) as wishes:
        async for wish, folder in wishes:
            yield folder, wish


async def _wishes(
    ledger: Ledger, source: Source, within: float
) -> AsyncGenerator[tuple[Revision, Path]]:
    """What the source wishes, fetched, once each: a bad one is waited out, like a dead hub."""
    seen = set(ledger.refused)
    for failures in count(1):
        try:
            async for revision in source.wanted():
                if revision.id not in seen:
                    folder = await _fetched(source, revision, within)
                    yield revision, folder
                    seen.add(revision.id)
            return
        except TryAgain as fault:
            pause = max(default_backoff(failures), fault.retry_after or 0.0)
            log.warning("boot.no_model_yet", extra={"why": str(fault)})
        except CheckpointRejected as bad:
            pause = default_backoff(failures)
            seen.add(revision.id)
            log.warning("boot.no_model_yet", extra={"why": str(bad)})
        await asyncio.sleep(pause)


async def _folder_of(place: Place, source: Source, within: float) -> Path:
    """Where a generation's files lie; a source may bring back what was cleaned away."""
    folder = Path(place.path)
    if not await _reading(folder, folder.exists):
        try:
            return await _fetched(source, place.revision, within)
        except HotReloadError as gone:
            why = {"path": place.path, "why": str(gone)}
            log.warning("boot.last_good_is_gone", extra=why)
    return folder


async def _fetched(source: Source, revision: Revision, within: float) -> Path:
    async with deadline(within, f"fetching {revision}", "[reload] fetch_timeout"):
        return await source.fetch(revision)


async def served_from(model: Path) -> Served:
    """What an engine with this model serves: the measure of every checkpoint."""
    if not await _reading(model, (model / "config.json").is_file):
        words = f"[engine] model: {model} is no model folder: it has no config.json"
        raise ConfigError(words, code=UNFIT_MODEL)
    try:
        return await _reading(model, lambda: served_by(model))
    except CheckpointRejected as unfit:
        words = f"[engine] model: {model} cannot be served: {unfit}"
        raise ConfigError(words, code=UNFIT_MODEL) from unfit


async def first_engine[E](
    settings: Settings,
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
    if settings.engine.boot == "dummy":
        return await start(None), None
    refusals = []
    for why, find in _candidates(settings, ledger, source, model, first_wish):
        try:
            revision, path = await find()
            checkpoint = await check(revision, path)
            log.info("boot.chosen", extra={"path": str(path), "why": why})
            return await start(checkpoint), checkpoint
        except _Nothing as nothing:
            refusals.append(f"{why}: {nothing}")
            log.info("boot.no_candidate", extra={"candidate": why, "why": str(nothing)})
        except (CheckpointRejected, TryAgain, BadRequest, ConfigError) as fault:
            if isinstance(fault, ConfigError) and (fault.code != DOES_NOT_START or path == model):
                raise
            refusals.append(f"{why}: {fault}")
            log.warning("boot.passed_over", extra={"candidate": why, "why": str(fault)})
    raise ConfigError(
        "nothing to start with; put a sound checkpoint into [engine] model\n  "
        + "\n  ".join(refusals),
        code=UNFIT_MODEL,
    )


Find = Callable[[], Awaitable[tuple[Revision, Path]]]


class _Nothing(Exception):
    """There is no such candidate, which is no fault of anybody's."""


def _candidates(
    settings: Settings,
    ledger: Ledger,
    source: Source,
    model: Path,
    first_wish: Revision | None,
) -> Iterator[tuple[str, Find]]:
    """What to start from, the best first; each is looked for when its turn comes."""
    place, within = ledger.last_good, settings.reload.fetch_timeout
    is_configured = settings.engine.model is not None

    async def last_good() -> tuple[Revision, Path]:
        assert place is not None
        return place.revision, await _folder_of(place, source, within)

    async def last_good_again() -> tuple[Revision, Path]:
        assert place is not None  # bytes that were damaged here, a hub still has
        return place.revision, await _fetched(source, place.revision, within)

    async def newest() -> tuple[Revision, Path]:
        try:
            revision = first_wish or await source.resolve(None)
        except HotReloadError as none:
            raise _Nothing(str(none)) from none
        has_crashed = revision.id in ledger.crashes and (place is not None or is_configured)
        if has_crashed or revision.id in ledger.refused:
            raise _Nothing(f"{revision} is the newest, and was refused or ended a process")
        return revision, await _fetched(source, revision, within)

    async def configured() -> tuple[Revision, Path]:
        return await _revision_of(model), model

    if settings.engine.boot == "last-good" or not is_configured:
        if place is not None:
            yield f"the last good generation, {place.path}", last_good
            yield f"the last good generation, {place.revision}, fetched again", last_good_again
        yield "the newest checkpoint", newest
    if is_configured:
        yield f"the configured model, {model}", configured


async def _revision_of(model: Path) -> Revision:
    looked = await _reading(model, lambda: survey(model))
    if looked.waiting_for is not None:
        raise ConfigError(f"[engine] model: {model} holds no weights: {looked.waiting_for}")
    return Revision(await _reading(model, lambda: content_id(looked)), model.name)


async def _reading[T](model: Path, read: Callable[[], T]) -> T:
    return await in_thread(lambda cancel: read(), leave_as=f"a read of {model}")


async def first_generation(
    engine: SglangEngine,
    *,
    path: Path | None,
    model: Path | None,
    ledger: Ledger,
    save: Callable[[Ledger], Awaitable[None]],
) -> Generation:
    """Probe what the engine started with, record it, and return it as what is live.

    `model` is the operator's: there is nothing to fall back to when that one answers badly.
    """
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
