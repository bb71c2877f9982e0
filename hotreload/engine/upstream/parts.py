"""Parts of a running engine: builds them, and takes them apart again."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hotreload.engine.upstream import embedded_engine, frozen
from hotreload.engine.upstream.ipc_sockets import SocketFolder, close_sockets
from hotreload.engine.upstream.outlet import Outlet
from hotreload.engine.upstream.thread.scheduler import SchedulerThread, end_worker_threads
from hotreload.engine.upstream.thread.watch import Part
from hotreload.threads import in_thread

JOIN_SECONDS = 10.0
JOIN_TURNS = 50

ENGINE_START = "the engine's start"
"""The thread that builds one, by its name among those that are left behind."""

ReportLoss = Callable[[str], None]


@dataclass(slots=True)
class Parts:
    """Parts that a running engine is made of."""

    report: ReportLoss
    sockets: SocketFolder
    engine: Any = None
    scheduler: SchedulerThread | None = None
    outlet: Outlet = field(default_factory=Outlet)

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
        """Name the thread that clients wait for and that has ended; None when none has."""
        return self.running_scheduler.fault()


def list_watched(parts: Parts) -> list[Part]:
    """List every part that clients wait for, and how long it may be busy with one thing."""
    seconds = parts.engine.server_args.watchdog_timeout
    words = f"a step takes longer than {seconds:g} s (watchdog_timeout)"
    return [Part(words, parts.running_scheduler.progress, seconds)]


def take_apart(parts: Parts) -> None:
    """End the threads and drop every reference; blocks.

    Afterwards the device memory is free and another engine can be started in this process. The
    tokenizer manager's sockets belong to a loop: the caller closes them.
    """
    scheduler, has_ended = parts.scheduler, False
    if scheduler is not None:
        scheduler.ask_to_stop()
        has_ended = _has_ended(scheduler)
        if has_ended:
            end_worker_threads(scheduler.scheduler, JOIN_SECONDS)
            close_sockets(scheduler.scheduler, parts.engine)
    if parts.engine is not None:
        _close_loop(parts.engine)
    parts.sockets.remove()
    left = None if scheduler is None else weakref.ref(scheduler.scheduler)
    parts.engine = parts.scheduler = None
    if scheduler is not None and has_ended:
        scheduler.drop_references()
    embedded_engine.forget_arrays()
    frozen.thaw(parts, left)


def discard(parts: Parts) -> None:
    """Take apart an engine that will not run, in the thread that built it.

    No loop has begun to use its sockets. If they stayed open, their context would wait for them
    for ever.
    """
    close_sockets(parts.tokenizer_manager)
    take_apart(parts)


async def take_apart_off_loop(parts: Parts) -> None:
    """Take a running engine apart, off the loop, and close what belongs to the loop."""
    manager = parts.tokenizer_manager
    await asyncio.to_thread(take_apart, parts)
    close_sockets(manager)


def _has_ended(scheduler: SchedulerThread) -> bool:
    """Wait for the scheduler thread to end; release it if it waits for a dead forward thread.

    If it waits for a result, it gets None, cannot read that, and ends. If it waits for the launch
    of the batch that failed, that launch is marked as done.
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


def _close_loop(engine: Any) -> None:
    """Close the event loop that main makes for its blocking calls; none are made here."""
    loop = getattr(engine, "loop", None)
    if loop is not None and not loop.is_running():
        loop.close()


async def build_parts(make: Callable[[threading.Event], Parts], *, is_read: bool = False) -> Parts:
    """Build an engine's parts by `make` in a thread; a cancel leaves the thread behind.

    The thread may compile for minutes or wait for another rank, and a stop must not wait for that.
    The parts that it still makes are freed. `is_read` says that the thread reads files.
    """
    return await in_thread(make, discard=discard, leave_as=ENGINE_START, is_read=is_read)
