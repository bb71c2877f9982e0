"""Builds upstream's Engine in this process, and takes it apart again.

Knows upstream's parts (scheduler, detokenizer, tokenizer manager, sockets); nothing of swaps.
"""

import asyncio
import dataclasses
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.engine import versions
from hotreload.engine.model_folder import unservable, unshared
from hotreload.engine.source_text import unknown_arguments
from hotreload.engine.upstream import embedding, frozen, logprobs, patches
from hotreload.engine.upstream.devices import find_devices
from hotreload.engine.upstream.legs import Leg
from hotreload.engine.upstream.scheduler import (
    SchedulerStopped,
    SchedulerThread,
    Stop,
    end_worker_threads,
    stop_on_message,
)
from hotreload.engine.upstream.sockets import SocketFolder, close_sockets
from hotreload.engine.upstream.watch import Part
from hotreload.errors import ConfigError
from hotreload.hosts.upstream import wire
from hotreload.hosts.upstream.joining import Ranks
from hotreload.owned_args import refused_args

log = logging.getLogger("hotreload.engine")

JOIN_SECONDS = 10.0
JOIN_TURNS = 50
MESSAGE_SECONDS = 30.0
"""How long the detokenizer or our loop may take over one message, with a few tokens to decode."""

DOES_NOT_START = "does_not_start"
"""The code of upstream's own refusals, which may be about the weights it was given."""

_STARTING = threading.Lock()
"""One engine starts at a time: what a start replaces, in upstream and in the process, is there once
for all. What runs meanwhile does not use it."""

Report = Callable[[str], None]


@dataclass(slots=True)
class Parts:
    """What a running engine is made of."""

    report: Report
    sockets: SocketFolder
    engine: Any = None
    scheduler: SchedulerThread | None = None
    detokenizer: Any = None
    detokenizer_thread: threading.Thread | None = None
    to_detokenizer: Leg = field(default_factory=lambda: Leg("the detokenizer"))
    to_loop: Leg = field(default_factory=lambda: Leg("the loop that receives answers"))

    @property
    def tokenizer_manager(self) -> Any:
        """Upstream's front: takes requests, hands out answers."""
        return self.engine.tokenizer_manager

    @property
    def model_runner(self) -> Any:
        """Upstream's holder of the model."""
        return self.running_scheduler.scheduler.tp_worker.get_model_runner()

    @property
    def running_scheduler(self) -> SchedulerThread:
        """The scheduler of a built engine."""
        assert self.scheduler is not None
        return self.scheduler

    def fault(self) -> str | None:
        """Which thread that clients wait for has ended, in words; None when none has."""
        thread = self.detokenizer_thread
        if thread is not None and not thread.is_alive():
            return "the detokenizer thread has ended"
        return self.running_scheduler.fault()


def build(
    *,
    model: Path,
    device: str,
    tp: int,
    dtype: str,
    load_format: str,
    args: Mapping[str, Any],
    report: Report,
    first_device: int = 0,
    engines: int = 1,
    log_level: int = logging.WARNING,
    ranks: Ranks | None = None,
) -> Parts:
    """Start an engine; blocks until it could serve. ConfigError says what to change.

    Of one with `ranks` the others have been met, and each builds its part.
    """
    if not (model / "config.json").is_file():
        raise ConfigError(f"[engine] model: {model} is no model folder (it has no config.json)")
    with _STARTING:
        entry, server_args = _ready_upstream(log_level)
    if why := unshared(model, tp, args):
        raise ConfigError(why)
    devices = find_devices(device, tp, first_device, engines)
    device = devices[0].platform
    given = {
        "model_path": str(model),
        "device": device,
        "tp_size": tp,
        "dtype": dtype,
        "load_format": load_format,
        "device_indexes": list(range(first_device, first_device + tp)),
        "enable_single_process": True,
        "skip_server_warmup": True,
        "log_level": logging.getLevelName(log_level).lower(),
        **(_over(ranks) if ranks is not None else {}),
    }
    arguments = _arguments(server_args, given, args, device)
    sockets = SocketFolder()
    parts = Parts(report, sockets)
    launching = embedding.starting(
        entry,
        launch_scheduler=partial(_launch_scheduler, parts, ranks.secret if ranks else None),
        run_detokenizer=partial(_run_detokenizer, parts),
        devices=devices,
    )
    try:
        with _STARTING, launching, sockets.holding(sys.modules[server_args.__module__]):
            parts.engine = entry.Engine(**arguments)
    except ConfigError:
        take_apart(parts)
        raise
    except Exception as fault:
        take_apart(parts)
        tokenizer = args.get("tokenizer_path")
        why = unservable(model, Path(tokenizer) if tokenizer else None) or _in_words(fault)
        words = f"the engine does not start on {model}: {why}"
        raise ConfigError(words, code=DOES_NOT_START) from fault
    return parts


def _ready_upstream(log_level: int) -> tuple[Any, Any]:
    """Upstream's engine module and its arguments, with the work-rounds that come before a start."""
    with versions.imports_explained(), embedding.importing_upstream():
        entry, server_args, sampler, loader = _upstream()
    if why := versions.why_untested():
        log.warning("engine.untested", extra={"why": why, "todo": versions.how_to_install()})
    patches.ready_first_release(loader, sampler)
    embedding.quiet(log_level)
    return entry, server_args


def _upstream() -> tuple[Any, ...]:
    from sgl_jax.srt.entrypoints import engine
    from sgl_jax.srt.layers import sampler
    from sgl_jax.srt.layers.attention import native_backend  # noqa: F401 (needs the work-round)
    from sgl_jax.srt.model_loader.loader import JAXModelLoader
    from sgl_jax.srt.server_args import ServerArgs
    from sgl_jax.srt.utils import weight_utils  # noqa: F401 (has progress bars to silence)

    return engine, ServerArgs, sampler, JAXModelLoader


def _arguments(
    server_args: type, given: dict[str, Any], args: Mapping[str, Any], device: str
) -> dict[str, Any]:
    known = {each.name for each in dataclasses.fields(server_args)}
    for words in refused_args(args):
        raise ConfigError(f"[engine.args] {words}")
    for words in unknown_arguments(args, known):
        raise ConfigError(f"[engine.args] {words}")
    chosen = {**given, **(_on_cpu() if device == "cpu" else {}), **args}
    return {name: value for name, value in chosen.items() if name in known}


def _over(ranks: Ranks) -> dict[str, Any]:
    """The engine lies on all devices of all ranks: none of them is chosen."""
    found = {"nnodes": ranks.count, "node_rank": ranks.own, "dist_init_addr": ranks.address}
    return {**found, "device_indexes": None}


def _on_cpu() -> dict[str, Any]:
    """Attention kernels and compiling ahead are for accelerators.

    Upstream pads a prompt to its chunk size, 4096 tokens: on a CPU that takes minutes.
    """
    return {
        "chunked_prefill_size": 512,
        "max_running_requests": 32,
        "max_total_tokens": 16384,
        "attention_backend": "native",
        "disable_jax_precompile": True,
        "disable_precompile": True,
        "mem_fraction_static": 0.1,
    }


def _in_words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def _launch_scheduler(
    parts: Parts, join_secret: str | None, server_args: Any, port_args: Any
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
        ending = embedding.with_threads_that_end(Scheduler, ModelWorker)
        with ending, wire.guarded(join_secret):
            scheduler.__init__(server_args, port_args)
    except BaseException:
        # Nobody else knows this half-made scheduler: its sockets and threads would stay.
        end_worker_threads(scheduler, JOIN_SECONDS)
        close_sockets(scheduler)
        raise
    parts.to_detokenizer.begins_at(scheduler.send_to_detokenizer)
    parts.to_loop.begins_at(scheduler.send_to_tokenizer)
    parts.scheduler = SchedulerThread(scheduler, parts.report)
    parts.scheduler.start()
    return {
        "status": "ready",
        "max_total_num_tokens": scheduler.max_total_num_tokens,
        "max_req_input_len": scheduler.max_req_input_len,
        "scheduler": scheduler,
    }


def _run_detokenizer(parts: Parts, server_args: Any, port_args: Any) -> None:
    """Replaces upstream's detokenizer loop: can be stopped, and reports its failure."""
    from sgl_jax.srt.managers.detokenizer_manager import DetokenizerManager
    from sgl_jax.srt.managers.io_struct import BatchTokenIDOut

    try:
        parts.detokenizer_thread = threading.current_thread()
        parts.detokenizer = DetokenizerManager(server_args, port_args)
        patches.decode_as_each_asked(parts.detokenizer, BatchTokenIDOut)
        patches.list_every_token(parts.detokenizer, BatchTokenIDOut)
        stop_on_message(parts.detokenizer._request_dispatcher)
        parts.to_detokenizer.ends_at(parts.detokenizer.recv_from_scheduler)
        parts.to_loop.begins_at(parts.detokenizer.send_to_tokenizer)
        parts.detokenizer.event_loop()
    except SchedulerStopped:
        return
    except Exception as fault:
        parts.report(f"the detokenizer thread failed: {_in_words(fault)}")


def watched(parts: Parts) -> list[Part]:
    """Every part that clients wait for, and how long it may be busy with one thing."""
    seconds = parts.engine.server_args.watchdog_timeout
    words = f"a step takes longer than {seconds:g} s (watchdog_timeout)"
    found = [Part(words, parts.running_scheduler.progress, seconds)]
    seconds = min(seconds, MESSAGE_SECONDS)
    for leg in (parts.to_detokenizer, parts.to_loop):
        words = f"{leg.name} takes longer than {seconds:g} s for one message"
        found.append(Part(words, leg.progress, seconds))
    return found


def take_apart(parts: Parts) -> None:
    """End the threads and let go of every reference; blocks.

    Afterwards the device memory is free and another engine can be started in this process. The
    tokenizer manager's sockets belong to a loop: the caller closes them.
    """
    scheduler, has_ended = parts.scheduler, False
    if scheduler is not None:
        scheduler.ask_to_stop()
        has_ended = _has_ended(scheduler)
        if has_ended:
            end_worker_threads(scheduler.scheduler, JOIN_SECONDS)
            _end_detokenizer(parts, scheduler.scheduler)
            close_sockets(scheduler.scheduler, parts.detokenizer, parts.engine)
    if parts.engine is not None:
        _close_loop(parts.engine)
    parts.sockets.remove()
    left = None if scheduler is None else weakref.ref(scheduler.scheduler)
    parts.engine = parts.scheduler = parts.detokenizer = parts.detokenizer_thread = None
    if scheduler is not None and has_ended:
        scheduler.drop_references()
    embedding.forget_arrays()
    frozen.thaw(parts, left)


def discard(parts: Parts) -> None:
    """Take apart an engine that nobody will run, in the thread that built it.

    No loop has begun to use its sockets. If they stayed open, their context would wait for them
    for ever.
    """
    close_sockets(parts.tokenizer_manager)
    take_apart(parts)


async def taken_apart(parts: Parts) -> None:
    """Take a running engine apart, off the loop, and close what belongs to the loop."""
    manager = parts.tokenizer_manager
    await asyncio.to_thread(take_apart, parts)
    close_sockets(manager)


def _has_ended(scheduler: SchedulerThread) -> bool:
    """Wait for the scheduler thread to end; one that waits for a dead forward thread is released.

    It may wait for a result: it gets None, cannot read that, and so ends. Or it may wait for the
    launch of the batch that failed, and is told that it was launched.
    """
    worker = scheduler.scheduler.tp_worker
    for _ in range(JOIN_TURNS):
        if scheduler.join(JOIN_SECONDS / JOIN_TURNS):
            return True
        if hasattr(worker, "forward_thread") and not worker.forward_thread.is_alive():
            worker.output_queue.put(None)
            launched = getattr(scheduler.scheduler.cur_batch, "launch_done", None)
            if launched is not None:
                launched.set()
    return False


def _end_detokenizer(parts: Parts, scheduler: Any) -> None:
    # The socket is the scheduler thread's, which has ended: nobody else uses it now.
    if parts.detokenizer_thread is not None:
        scheduler.send_to_detokenizer.send_pyobj(Stop())
        parts.detokenizer_thread.join(JOIN_SECONDS)


def _close_loop(engine: Any) -> None:
    """main makes an event loop for its blocking calls, which nobody makes here."""
    loop = getattr(engine, "loop", None)
    if loop is not None and not loop.is_running():
        loop.close()
