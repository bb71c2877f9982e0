"""Builds upstream's Engine in this process, and takes it apart again.

Knows upstream's parts (scheduler, detokenizer, tokenizer manager, sockets); nothing of swaps.
"""

import asyncio
import dataclasses
import gc
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from hotreload.engine import patches
from hotreload.engine.devices import find_devices
from hotreload.engine.scheduler import (
    SchedulerThread,
    Stop,
    Stopped,
    end_worker_threads,
    stop_on_message,
)
from hotreload.errors import ConfigError

JOIN_SECONDS = 10.0
JOIN_TURNS = 50

OURS = {
    "model_path": "[engine] model",
    "device": "[engine] device",
    "tp_size": "[engine] tp",
    "dtype": "[engine] dtype",
    "load_format": "[engine] boot",
    "device_indexes": "[engine] replicas",
    "enable_single_process": None,
    "skip_tokenizer_init": None,
    "multimodal": None,
    "is_embedding": None,
    "enable_engine_loop_run_forever_daemon": None,
}
"""Arguments of upstream's that cannot be given as they are, and the setting to use instead."""

DOES_NOT_START = "does_not_start"
"""The code of upstream's own refusals, which may be about the weights it was given."""

Report = Callable[[str], None]


@dataclass(slots=True)
class Parts:
    """What a running engine is made of."""

    report: Report
    engine: Any = None
    scheduler: SchedulerThread | None = None
    detokenizer: Any = None
    detokenizer_thread: threading.Thread | None = None

    @property
    def tokenizer_manager(self) -> Any:
        """Upstream's front: takes requests, hands out answers."""
        return self.engine.tokenizer_manager

    @property
    def model_runner(self) -> Any:
        """Upstream's holder of the model; one hop nearer when overlap scheduling is off."""
        return self.running_scheduler.scheduler.tp_worker.get_model_runner()

    @property
    def running_scheduler(self) -> SchedulerThread:
        """The scheduler of a built engine."""
        assert self.scheduler is not None
        return self.scheduler


def build(
    *,
    model: Path,
    device: str,
    tp: int,
    dtype: str,
    load_format: str,
    args: Mapping[str, Any],
    log_level: int,
    report: Report,
    first_device: int = 0,
) -> Parts:
    """Start an engine; blocks until it could serve. ConfigError says what to change."""
    if not (model / "config.json").is_file():
        raise ConfigError(f"[engine] model: {model} is no model folder (it has no config.json)")
    with patches.importing_upstream():
        entry, server_args, sampler, loader = _upstream()
    patches.ready_first_release(loader, sampler)
    patches.quiet(log_level)
    devices = find_devices(device, tp, first_device)
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
    }
    parts = Parts(report)
    launching = patches.starting(
        entry,
        launch_scheduler=partial(_launch_scheduler, parts),
        run_detokenizer=partial(_run_detokenizer, parts),
        devices=devices,
    )
    arguments = _arguments(server_args, given, args, device)
    try:
        with launching:
            parts.engine = entry.Engine(**arguments)
    except Exception as fault:
        take_apart(parts)
        words = f"the engine does not start on {model}: {_in_words(fault)}"
        raise ConfigError(words, code=DOES_NOT_START) from fault
    return parts


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
    for name in args:
        if name in OURS:
            instead = f"use {OURS[name]}" if OURS[name] else "hotreload decides it"
            raise ConfigError(f"[engine.args] {name} cannot be set: {instead}")
        if name not in known:
            raise ConfigError(f"[engine.args] {name}: this sglang-jax has no such argument")
    chosen = {**given, **(_on_cpu() if device == "cpu" else {}), **args}
    return {name: value for name, value in chosen.items() if name in known}


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


def _launch_scheduler(parts: Parts, server_args: Any, port_args: Any) -> dict[str, Any]:
    """In place of upstream's: a failure is raised, and our work-rounds are in before it runs."""
    from sgl_jax.srt.managers.scheduler import Scheduler
    from sgl_jax.srt.managers.tp_worker import ModelWorker

    scheduler = Scheduler.__new__(Scheduler)
    try:
        with patches.with_threads_that_end(Scheduler, ModelWorker):
            scheduler.__init__(server_args, port_args)
    except BaseException:
        # Half made, nobody else knows it: its sockets and threads would stay.
        end_worker_threads(scheduler, JOIN_SECONDS)
        close_sockets(scheduler)
        raise
    parts.scheduler = SchedulerThread(scheduler, parts.report)
    parts.scheduler.start()
    return {
        "status": "ready",
        "max_total_num_tokens": scheduler.max_total_num_tokens,
        "max_req_input_len": scheduler.max_req_input_len,
        "scheduler": scheduler,
    }


def _run_detokenizer(parts: Parts, server_args: Any, port_args: Any) -> None:
    """In place of upstream's: it can be stopped, and its failure is reported."""
    from sgl_jax.srt.managers.detokenizer_manager import DetokenizerManager
    from sgl_jax.srt.managers.io_struct import BatchTokenIDOut

    try:
        parts.detokenizer_thread = threading.current_thread()
        parts.detokenizer = DetokenizerManager(server_args, port_args)
        patches.decode_as_each_asked(parts.detokenizer, BatchTokenIDOut)
        stop_on_message(parts.detokenizer._request_dispatcher)
        parts.detokenizer.event_loop()
    except Stopped:
        return
    except Exception as fault:
        parts.report(f"the detokenizer thread failed: {_in_words(fault)}")


def take_apart(parts: Parts) -> None:
    """End the threads and let go of every reference; blocks. Sockets on a loop go before.

    Afterwards the device memory is free and another engine can be started in this process.
    """
    scheduler = parts.scheduler
    if scheduler is not None:
        scheduler.ask_to_stop()
        if _has_ended(scheduler):
            end_worker_threads(scheduler.scheduler, JOIN_SECONDS)
            _end_detokenizer(parts, scheduler.scheduler)
            close_sockets(scheduler.scheduler, parts.detokenizer, parts.engine)
    if parts.engine is not None:
        _remove_socket_files(parts.engine.port_args)
        _close_loop(parts.engine)
    parts.engine = parts.scheduler = parts.detokenizer = parts.detokenizer_thread = None
    gc.unfreeze()
    gc.collect()


def discard(parts: Parts) -> None:
    """Take apart what nobody will run, in the thread that built it.

    No loop has begun to use its sockets; left open, their context would wait for them for ever.
    """
    close_sockets(parts.tokenizer_manager)
    take_apart(parts)


async def taken_apart(parts: Parts) -> None:
    """Take a running engine apart, off the loop, and close what belongs to the loop."""
    manager = parts.tokenizer_manager
    await asyncio.to_thread(take_apart, parts)
    close_sockets(manager)


def _has_ended(scheduler: SchedulerThread) -> bool:
    """Wait for its end; one that waits for a result of a dead forward thread would do so for ever.

    What it is given instead it cannot read, which ends it.
    """
    worker = scheduler.scheduler.tp_worker
    for _ in range(JOIN_TURNS):
        if scheduler.join(JOIN_SECONDS / JOIN_TURNS):
            return True
        if hasattr(worker, "forward_thread") and not worker.forward_thread.is_alive():
            worker.output_queue.put(None)
    return False


def _end_detokenizer(parts: Parts, scheduler: Any) -> None:
    # The socket is the scheduler thread's, which has ended: nobody else uses it now.
    if parts.detokenizer_thread is not None:
        scheduler.send_to_detokenizer.send_pyobj(Stop())
        parts.detokenizer_thread.join(JOIN_SECONDS)


def close_sockets(*owners: Any) -> None:
    """Close every socket these hold, and the contexts behind them."""
    import zmq

    sockets = [
        value for owner in owners for value in _attributes(owner) if isinstance(value, zmq.Socket)
    ]
    for socket in sockets:
        socket.close(linger=0)
    for context in {socket.context for socket in sockets}:
        context.destroy(linger=0)


def _attributes(owner: Any) -> list[Any]:
    return list(vars(owner).values()) if owner is not None else []


def _remove_socket_files(port_args: Any) -> None:
    """Upstream makes each in the temporary folder and leaves it there."""
    for address in dataclasses.asdict(port_args).values():
        if isinstance(address, str) and address.startswith("ipc://"):
            Path(urlparse(address).path).unlink(missing_ok=True)


def _close_loop(engine: Any) -> None:
    """main makes an event loop for its blocking calls, which nobody makes here."""
    loop = getattr(engine, "loop", None)
    if loop is not None and not loop.is_running():
        loop.close()
