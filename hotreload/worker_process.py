"""START HERE for a worker: a process that serves HTTP, started by the daemon and ended with it."""

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import uvloop

from hotreload.facts.heap import give_back
from hotreload.life.kept_worker import WorkerStart
from hotreload.observe.log import configure
from hotreload.server.app import create_worker_app
from hotreload.server.from_settings import worker_rules
from hotreload.server.http.limits import CounterMemory
from hotreload.server.ports import Encoder
from hotreload.server.workers.worker import Worker

log = logging.getLogger("hotreload.worker")


def main() -> None:
    """Run a worker until it ends; its start parameters come on stdin."""
    # Ctrl-C reaches every process of the terminal, but the daemon decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start: WorkerStart = pickle.load(sys.stdin.buffer)
    configure(start.settings.log.level, start.settings.log.format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(start))


async def _work(start: WorkerStart) -> None:
    wire, handover, counts = start.descriptors
    worker = Worker(
        limits=start.limits,
        counts=CounterMemory(counts, start.processes).of(start.index),
        make_app=partial(create_worker_app, worker_rules(start.settings, start.keys)),
        apply_settings=lambda fields: _apply_settings(start, fields),
        make_encoder=_make_encoder,
        graces=start.graces,
    )
    log.debug("worker.serves", extra={"worker": start.index, "pid": os.getpid()})
    await worker.run(socket.socket(fileno=wire), socket.socket(fileno=handover))


def _apply_settings(start: WorkerStart, fields: Mapping[str, Any]) -> None:
    """Apply settings and keys that the daemon has read again."""
    for name, value in fields["limits"].items():
        setattr(start.limits, name, value)
    for name, names in fields["keys"].items():
        start.keys[name].names = names
    configure(**fields["log"])


def _make_encoder(name: str, data: bytes) -> Encoder | None:
    """Build the copy of the engine's encoder; None if this process cannot load it."""
    from hotreload.engine.answering.encoder_copy import CopiedEncoder  # many workers need none

    try:
        return CopiedEncoder(name, data)
    except Exception as fault:  # say, the tokenizer needs code that only the engine's process has
        log.warning("worker.cannot_encode", exc_info=fault)
        return None
    finally:
        give_back()  # reading a large tokenizer leaves 50 MB of free heap
