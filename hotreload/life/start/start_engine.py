"""Starts the engine that the settings describe: by our own loader, or from a private copy."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotreload.core.progress import AttemptProgress, publish_progress
from hotreload.engine.compile_cache import JAX_VARIABLE, CompileCache
from hotreload.engine.options import COMPILED, RANDOM_WEIGHTS, EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.upstream.build import DOES_NOT_START, import_upstream
from hotreload.engine.weights.load.first_load import FirstLoad, NotByOurs
from hotreload.engine.weights.load.trust import note_in_vain, read_mark
from hotreload.engine.weights.memory.spare_processors import count_threads
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import ConfigError, TryAgain
from hotreload.life.live_settings import CheckpointChecks, LiveSettings
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.model_files import (
    copy_privately,
    keep_model,
    kept_model,
    place_for_copies,
)
from hotreload.life.start.warmup import LONGEST, warm
from hotreload.quiet import Quiet
from hotreload.settings.load import Settings
from hotreload.settings.tables import values_of
from hotreload.threads import in_thread, run_to_end
from hotreload.types import Checkpoint, Phase

log = logging.getLogger("hotreload.boot")


TRUST = "own_loader"
"""File in the state folder that says for which models our own loader loads as upstream's."""

MakeEngine = Callable[..., Awaitable[RunningEngine]]
"""Make an engine, by the arguments of `SglangEngine.start`."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Starts the first engine from a checkpoint, and all others beside one that serves."""

    live_settings: LiveSettings
    checking: CheckpointChecks
    make: MakeEngine | None
    """Stands in for `SglangEngine.start`."""
    started: Callable[[], None]
    """Called after each start, in which XLA installs a handler for SIGTERM."""

    async def first(
        self, model: Path, weights: Checkpoint | None, progress: AttemptProgress
    ) -> RunningEngine:
        """Start the first engine; from then on every checkpoint must have its tensors."""
        settings = self.live_settings.settings
        engine = await start_engine(settings, model, weights, progress, self.make)
        self.started()
        if not self.checking.served.tensors:  # a folder without weights; now there are some
            tensors = weights.tensors if weights else engine.weights.expected_tensors()
            self.checking.serve(replace(self.checking.served, tensors=tensors))
        log.info("engine.started", extra=engine.facts())
        return engine

    async def twin(self, index: int, twin: RunningEngine) -> RunningEngine:
        """Start another engine with the weights of one that serves."""
        engine = await start_twin(self.live_settings.settings, index, twin)
        self.started()
        log.info("engine.started", extra={**engine.facts(), "replica": index})
        return engine


async def start_engine(
    settings: Settings,
    model: Path,
    weights: Checkpoint | None,
    progress: AttemptProgress,
    make: MakeEngine | None = None,
) -> RunningEngine:
    """Start the engine with the model's config and tokenizer, and these weights.

    Later starts use the same model, if the settings name none.
    """
    engine = None
    if make is None and weights is not None and settings.engine.loader == "auto":
        engine = await _start_with_own_loader(settings, model, weights, progress)
    if engine is None:
        made_from = to_start_from(settings, model, weights, progress)
        async with made_from as asked, progress.phase(Phase.BUILDING):
            engine = await (make or SglangEngine.start)(**asked)
    async with close_on_error(engine):
        is_configured = settings.engine.model is not None
        await keep_model(model, settings.state.directory, is_configured=is_configured)
        await _warm(engine, settings, progress)
    return engine


async def _start_with_own_loader(
    settings: Settings, model: Path, weights: Checkpoint, progress: AttemptProgress
) -> RunningEngine | None:
    """Start with our own loader if an earlier start has verified it; else return None.

    None also if upstream's loader can say better why the engine does not start.
    """
    trust = settings.state.directory / TRUST
    mark = await asyncio.to_thread(read_mark, trust)
    if mark is None:
        return None
    filling = FirstLoad(weights, mark, settings.reload.stage_timeout)
    telling = publish_progress(
        lambda: filling.so_far, progress.revision, progress.publish, Phase.BUILDING
    )
    try:
        made_from = to_start_from(settings, model, weights, progress, filling)
        async with made_from as asked, progress.phase(Phase.BUILDING), telling:
            return await SglangEngine.start(**asked)
    except (NotByOurs, ConfigError) as fault:
        if isinstance(fault, ConfigError) and fault.code != DOES_NOT_START:
            raise
        log.info("boot.upstreams_loader", extra={"why": str(fault)})
    await asyncio.to_thread(note_in_vain, trust, mark)
    return None


async def start_twin(settings: Settings, index: int, twin: RunningEngine) -> SglangEngine:
    """Start another engine with the same weights, on devices of its own."""
    state = settings.state.directory
    model = settings.engine.model or await in_thread(lambda cancel: kept_model(state))
    if model is None:
        raise TryAgain(f"the model's files are gone from {state}")
    assert isinstance(twin, SglangEngine), "what a daemon starts is one"
    options = engine_options(settings, model)
    engine = await SglangEngine.start(
        replace(options, first_device=index * settings.engine.tp),
        terms=_terms(settings, state / "staging"),
        probes=settings.probe,
        twin=twin,
    )
    async with close_on_error(engine):
        # There is no attempt: no phases are published.
        await _warm(
            engine, settings, AttemptProgress(engine.weights.live.revision, lambda event: None)
        )
    return engine


@asynccontextmanager
async def import_in_background() -> AsyncIterator[None]:
    """Import sglang-jax while the block runs: the first reads and checks do not need it."""

    async def import_engine() -> None:
        with suppress(Exception):  # the start meets the same error, and reports it
            await in_thread(lambda cancel: import_upstream(), leave_as="an import", is_read=False)

    importing = asyncio.create_task(import_engine(), name="import sglang-jax")
    try:
        yield
    finally:
        importing.cancel()
        await run_to_end(asyncio.wait({importing}))


@asynccontextmanager
async def close_on_error(engine: RunningEngine) -> AsyncIterator[None]:
    """Close the engine if the block raises: the engine is not handed over yet."""
    try:
        yield
    except BaseException:
        await run_to_end(engine.close())
        raise


async def _warm(engine: RunningEngine, settings: Settings, progress: AttemptProgress) -> None:
    """Compile for the first requests, unless the engine can compile beside requests.

    Until it has compiled there, the engine admits only batches, probes included, that are compiled.
    """
    engine.ahead.keep_to_compiled(True)
    most, within = settings.engine.warm_batches, settings.engine.warm_timeout
    if not engine.ahead.sizes_to_compile(most, LONGEST):
        await warm(engine, progress, most=most, within=within)


def engine_options(settings: Settings, model: Path, load_format: str = "auto") -> EngineOptions:
    """Return the options of every engine, from the settings."""
    return EngineOptions(
        **{**dict(values_of(settings.engine)), "model": model},
        load_format=load_format,
        tool_call_parser=settings.server.tool_call_parser,
        programs=compile_cache_of(settings),
        shares=settings.rules.shares,
        sets=settings.reload.sets_planned,
        unseen=settings.unseen,
    )


def compile_cache_of(settings: Settings) -> CompileCache | None:
    """Return the compile cache; None if it is off, or if JAX's own variable sets one."""
    chosen = settings.engine.compile_cache
    if chosen == "off" or os.environ.get(JAX_VARIABLE):
        return None
    if chosen == "auto":
        return CompileCache(settings.state.directory / COMPILED, is_default=True)
    return CompileCache(Path(chosen))


@asynccontextmanager
async def to_start_from(
    settings: Settings,
    model: Path,
    weights: Checkpoint | None,
    progress: AttemptProgress,
    filling: FirstLoad | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Yield the arguments of `SglangEngine.start`.

    The engine is made from a private copy, which goes at the end of the block: of the small files
    alone where our own loader reads the weights.
    """
    to_copy = weights if filling is None else None
    place = await place_for_copies(settings.state.directory, to_copy)
    asked = {"terms": _terms(settings, place / "staging"), "probes": settings.probe}
    if weights is None:
        options = engine_options(settings, model, load_format="dummy")
        yield {**asked, "options": options, "revision": RANDOM_WEIGHTS}
        return
    asked["checkpoint" if filling is None else "filling"] = filling or weights
    within = settings.reload.stage_timeout
    async with copy_privately(model, to_copy, place, within, progress) as folder:
        with _name_the_model(settings, model, folder):
            options = engine_options(settings, folder)
            yield {**asked, "options": options, "revision": weights.revision}


@contextmanager
def _name_the_model(settings: Settings, model: Path, copy: Path) -> Iterator[None]:
    """Name the model in the engine's errors, in the place of its private copy."""
    try:
        yield
    except ConfigError as fault:
        words = str(fault).replace(str(copy), str(model))
        if model == settings.engine.model and not words.startswith("["):
            words = f"[engine] model: {words}"
        raise ConfigError(words, code=fault.code) from fault


def _terms(settings: Settings, spool: Path) -> StagingOptions:
    engine = settings.engine
    threads = count_threads(engine.staging_threads, engine.staging_priority)
    quiet = Quiet(threads, engine.staging_priority, engine.staging_starve)
    drift = settings.checks.max_drift
    trust = settings.state.directory / TRUST
    return StagingOptions(spool, drift, engine.loader, settings.reload.memory, quiet, trust)
