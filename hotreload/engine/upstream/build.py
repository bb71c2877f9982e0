"""Builds upstream's Engine in this process.

Knows upstream's parts (scheduler, tokenizer manager, sockets); nothing of swaps.
"""

import inspect
import logging
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hotreload.engine import versions
from hotreload.engine.compile_cache import keeping_programs
from hotreload.engine.model_folder import unservable, why_unshared
from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream import embedded_engine, logprobs, patches
from hotreload.engine.upstream.arguments import (
    LOG_LEVEL,
    arguments_of,
    check_batches,
    check_pages,
    find_devices,
    plan_for,
)
from hotreload.engine.upstream.distributed import Distributed
from hotreload.engine.upstream.ipc_sockets import SocketFolder, close_sockets
from hotreload.engine.upstream.parts import JOIN_SECONDS, Parts, ReportLoss, take_apart
from hotreload.engine.upstream.thread.scheduler import (
    SchedulerThread,
    end_worker_threads,
)
from hotreload.errors import ConfigError, HotReloadError
from hotreload.types import Shares

log = logging.getLogger("hotreload.engine")

DOES_NOT_START = "does_not_start"
"""The code of upstream's own refusals, which may be about the weights it was given."""

_STARTING = threading.Lock()
"""One engine starts at a time: what a start replaces, in upstream and in the process, is there once
for all. What runs meanwhile does not use it."""


def build(
    options: EngineOptions,
    report: ReportLoss,
    distributed: Distributed | None = None,
    loading: AbstractContextManager[None] | None = None,
) -> Parts:
    """Start an engine; blocks until it could serve. ConfigError says what to change.

    If it is `distributed`, the other processes have been met, and each builds its part. Within
    `loading` others may see to its weights.
    """
    model, args = options.model, options.args
    if not (model / "config.json").is_file():
        raise ConfigError(f"[engine] model: {model} is no model folder (it has no config.json)")
    with _STARTING:
        entry, server_args = _ready_upstream()
    if why := why_unshared(model, options.tp, args):
        raise ConfigError(why)
    devices = find_devices(options.device, options.tp, options.first_device, options.replicas)
    over_processes = distributed.arguments if distributed else None
    own = [each for each in devices if each.process_index == devices[0].client.process_index()]
    fraction = plan_for(options, own or devices)
    arguments = arguments_of(server_args, options, devices[0].platform, over_processes, fraction)
    batches = sys.modules["sgl_jax.srt.managers.schedule_batch"]
    check_batches(arguments, are_in_buckets=hasattr(batches, "pad_to_bucket"))
    check_pages(arguments, native_knows_pages=_native_knows_pages())
    sockets = SocketFolder()
    parts = Parts(report, sockets)
    launching = embedded_engine.patch_start(
        entry,
        launch_scheduler=partial(_launch_scheduler, parts, distributed, options.shares),
        devices=devices,
    )
    try:
        holding = sockets.hold_sockets(sys.modules[server_args.__module__])
        kept = keeping_programs(options.programs, devices)
        with _STARTING, launching, holding, kept, loading or nullcontext():
            parts.engine = entry.Engine(**arguments)
    except HotReloadError:
        take_apart(parts)
        raise
    except Exception as fault:
        take_apart(parts)
        tokenizer = args.get("tokenizer_path")
        why = unservable(model, Path(tokenizer) if tokenizer else None) or _in_words(fault)
        words = f"the engine does not start on {model}: {why}"
        raise ConfigError(words, code=DOES_NOT_START) from fault
    return parts


def _native_knows_pages() -> bool:
    """True if upstream's native attention gets the number of tokens in a page of the KV pool."""
    native = import_module("sgl_jax.srt.layers.attention.native_backend")
    return "page_size" in inspect.signature(native.forward_attention).parameters


def import_upstream() -> None:
    """Import sglang-jax, which takes seconds: a start that comes later has it."""
    with _STARTING:
        _upstream()


def _ready_upstream() -> tuple[Any, Any]:
    """Upstream's engine module and its arguments, with the work-rounds that come before a start."""
    if why := versions.why_refused():
        raise ConfigError(f"{why}; {versions.how_to_install()}")
    entry, server_args, sampler, loader = _upstream()
    if why := versions.why_untested():
        log.warning("engine.untested", extra={"why": why, "todo": versions.how_to_install()})
    patches.ready_first_release(loader, sampler)
    embedded_engine.quiet(LOG_LEVEL)
    return entry, server_args


def _upstream() -> tuple[Any, ...]:
    with versions.imports_explained(), embedded_engine.import_upstream():
        from sgl_jax.srt.entrypoints import engine
        from sgl_jax.srt.layers import sampler
        from sgl_jax.srt.layers.attention import native_backend  # noqa: F401 (needs the work-round)
        from sgl_jax.srt.model_loader.loader import JAXModelLoader
        from sgl_jax.srt.server_args import ServerArgs
        from sgl_jax.srt.utils import weight_utils  # noqa: F401 (has progress bars to silence)

        return engine, ServerArgs, sampler, JAXModelLoader


def _in_words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def _launch_scheduler(
    parts: Parts,
    distributed: Distributed | None,
    shares: Shares,
    server_args: Any,
    port_args: Any,
) -> dict[str, Any]:
    """Replaces upstream's launcher: raises a failure, and mends the scheduler before it runs."""
    from sgl_jax.srt.layers.logits_processor import LogitsMetadata
    from sgl_jax.srt.managers.schedule_batch import ScheduleBatch
    from sgl_jax.srt.managers.schedule_policy import PrefillAdder
    from sgl_jax.srt.managers.scheduler import Scheduler
    from sgl_jax.srt.managers.tp_worker import ModelWorker
    from sgl_jax.srt.sampling.sampling_batch_info import SamplingMetadata

    patches.admit_what_was_retracted(PrefillAdder)
    logprobs.list_what_is_asked(ScheduleBatch)
    logprobs.compile_few_kinds(LogitsMetadata, SamplingMetadata)
    parts.sockets.check_holds(port_args)
    scheduler = Scheduler.__new__(Scheduler)
    try:
        ending = embedded_engine.with_threads_that_end(Scheduler, ModelWorker)
        with ending, distributed.guard_sockets() if distributed else nullcontext():
            scheduler.__init__(server_args, port_args)
    except BaseException:
        # Nobody else knows this half-made scheduler: its sockets and threads would stay.
        end_worker_threads(scheduler, JOIN_SECONDS)
        close_sockets(scheduler)
        raise
    parts.outlet.replace_sockets(scheduler)
    parts.scheduler = SchedulerThread(scheduler, parts.report, shares, distributed)
    parts.scheduler.start()
    return {
        "status": "ready",
        "max_total_num_tokens": scheduler.max_total_num_tokens,
        "max_req_input_len": scheduler.max_req_input_len,
        "scheduler": scheduler,
    }
