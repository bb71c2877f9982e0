"""START HERE: builds the parts, joins them, supervises them.

The parts know each other only through the core's ports, the gate and events. Whatever ends the
daemon, the gate is sealed first, so that nobody is answered by weights nobody vouches for.
"""

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.boot import first_generation, first_start
from hotreload.checks.check import check_checkpoint
from hotreload.checks.fit import Policy
from hotreload.config import Settings
from hotreload.core.asks import Operator
from hotreload.core.gate import Gate
from hotreload.core.reconcile import Reconciler
from hotreload.core.reload import ABORT_GRACE, Replica
from hotreload.core.threads import deadline, in_thread, uninterrupted
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import ConfigError, DeviceUnavailable, DrainTimedOut, EngineLost
from hotreload.events import Events, GenerationLive
from hotreload.joints import Later, View
from hotreload.observe.history import History
from hotreload.observe.log import LogObserver
from hotreload.observe.metrics import Metrics, Readings
from hotreload.observe.status import State, Status
from hotreload.observe.systemd import Notifier, Systemd
from hotreload.parts import (
    checkpoint_roots,
    listening,
    longest_boot,
    make_rules,
    make_source,
    model_name,
    webhook_secret,
)
from hotreload.server.app import create_app
from hotreload.server.limits import Limits
from hotreload.server.sockets import HttpServer, group_id, turn_away
from hotreload.server.webhook import Webhook
from hotreload.start_engine import start_engine
from hotreload.state import StateFile
from hotreload.types import Checkpoint, Generation, Revision, Served

log = logging.getLogger("hotreload")

STOP_DEADLINE = 30.0
"""How long requests under way may take to end after SIGTERM."""

EXIT_OK, EXIT_FORCED, EXIT_NO_DEVICE, EXIT_ENGINE_LOST, EXIT_BAD_CONFIG = 0, 1, 69, 70, 78


class Stopped(Exception):
    """Somebody asked us to stop."""


class Daemon:
    """One engine, one folder of checkpoints, one socket; `run` is its whole life."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events = Events()
        self.state = StateFile(settings.state.directory)
        self.ledger = self.state.read()
        self.ledger.count_crash(time.time())
        self.gate = Gate(
            publish=self.events.publish,
            max_held=settings.reload.max_held,
            hold_arrivals=settings.reload.while_closed == "hold",
        )
        self.source = make_source(settings, self.events.publish, self.ledger)
        self.engine = Later()
        self.control = Later()
        self.history = History(self.ledger.history)
        self.status = Status(
            ledger_view=lambda: self.ledger,
            gate_counts=lambda: (self.gate.inside, self.gate.held),
            last_attempt=self.history.last,
            source_kind=settings.source.kind,
        )
        self.metrics = Metrics(per_leaf=settings.metrics.per_leaf, readings=self._readings())
        self.systemd = Systemd(
            Notifier(), is_alive=self._is_engine_alive, longest_boot=longest_boot(settings)
        )
        for observer in (LogObserver(), self.history, self.status, self.metrics, self.systemd):
            self.events.subscribe(observer.observe)
        secret = webhook_secret(settings)
        self._webhook = Webhook(secret, self.source.wake) if secret is not None else None
        self._stop = asyncio.Event()
        self._ended_by: Exception | None = None
        self._replica: Replica | None = None
        self._served = Served({}, {}, {})

    # --- a life ------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop or the engine is lost; return the exit code."""
        with listening(self.settings, self.metrics) as at:
            self._take_signals()
            http = self._make_server(at.are_lasting)
            serving = asyncio.create_task(http.serve(at.sockets))
            beating = asyncio.create_task(self.systemd.beat())
            try:
                return await self._live(http)
            finally:
                http.stop()
                await serving
                if at.are_lasting and isinstance(self._ended_by, ConfigError):
                    turn_away(at.sockets, self._ended_by)
                await self.source.close()
                beating.cancel()

    async def _live(self, http: HttpServer) -> int:
        code = EXIT_OK
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._boot_and_reconcile(), name="the engine and its weights")
                tasks.create_task(self._wait_for_stop(http), name="wait for a signal")
        except* Stopped:
            self.ledger.abandon()  # what was under way says nothing about its checkpoint
            await self.state.save(self.ledger)
        except* ConfigError as faults:
            code = self._end(faults, EXIT_BAD_CONFIG, "daemon.bad_config")
        except* DeviceUnavailable as faults:
            code = self._end(faults, EXIT_NO_DEVICE, "daemon.no_device")
        except* EngineLost as losses:
            code = self._end(losses, EXIT_ENGINE_LOST, "daemon.engine_lost")
        except* Exception as faults:  # of ours; nobody knows what is whole, so be replaced
            log.critical("daemon.internal_error", exc_info=faults)
            code = self._end(faults, EXIT_ENGINE_LOST, "daemon.internal_error")
        # A stop that comes while a lost engine is closed must not make it a success.
        if code == EXIT_ENGINE_LOST or self.status.state is State.LOST:
            code = EXIT_ENGINE_LOST
            self.ledger.lost_at = time.time()  # so that the next life can tell of it
            await self.state.save(self.ledger)
        return code

    def _end(self, causes: BaseExceptionGroup[Any], code: int, message: str) -> int:
        cause: Any = causes
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        self._ended_by = cause
        self._seal(cause)
        log.critical(message, extra={"cause": str(cause), "exit_code": code})
        return code

    async def _boot_and_reconcile(self) -> None:
        engine, weights = await first_start(
            self.settings,
            ledger=self.ledger,
            source=self.source,
            serve=self._serve,
            check=self._check_in_time,
            start=self._start_noted,
            tell=self.systemd.starting,
        )
        try:
            if not self._served.tensors:  # a folder without weights; the engine knows its needs
                self._served = replace(self._served, tensors=engine.expected_tensors())
            self.systemd.starting("asking for the first answers")
            live = await first_generation(
                engine,
                path=weights.path if weights else None,
                model=self.settings.engine.model,
                ledger=self.ledger,
                save=self.state.save,
            )
            self._take_signals()
            reconciler = self._join(engine, live)
            gc.freeze()  # what the start made stays: no collection need look at it again
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reconciler.run(), name="reconcile")
                tasks.create_task(self._seal_when_lost(engine), name="watch the engine")
        finally:
            self.gate.seal("hotreload is leaving", code="stopping")  # whatever the reason is
            self.engine.arrive(None)
            await uninterrupted(engine.close())

    def _serve(self, served: Served) -> None:
        self._served = served

    async def _start_noted(self, model: Path, weights: Checkpoint | None) -> SglangEngine:
        """Start an engine; a checkpoint that kills us at that must be known to the next start."""
        last_good = self.ledger.last_good
        known = last_good.revision if last_good else None
        is_operators = weights is not None and weights.path == self.settings.engine.model
        if weights is not None and not is_operators and weights.revision != known:
            self.ledger.begin(weights.revision)
            await self.state.save(self.ledger)
        named = weights.revision if weights else "random weights"
        self.systemd.starting(f"loading {named} into the engine")
        return await start_engine(self.settings, model, weights)

    async def _seal_when_lost(self, engine: SglangEngine) -> None:
        try:
            await engine.died()
        except EngineLost as lost:
            self._seal(lost)
            raise

    async def _wait_for_stop(self, http: HttpServer) -> None:
        """SIGTERM: refuse newcomers, let those inside be answered, then end everything.

        Newcomers on a socket that outlives us are not refused: the next of us answers them.
        """
        await self._stop.wait()
        self.systemd.stopping()
        patience = STOP_DEADLINE
        if http.lasting:
            await http.leave(patience)
            patience = 0
        self.gate.seal("hotreload is stopping", code="stopping")
        try:
            await self.gate.drained(patience)
        except DrainTimedOut as late:
            log.warning("daemon.stop_deadline", extra={"cause": str(late)})
            if self._replica is not None:
                await self._replica.engine.abort()  # so that clients hear why
            with suppress(DrainTimedOut):
                await self.gate.drained(ABORT_GRACE)
        raise Stopped

    def _join(self, engine: SglangEngine, live: Generation) -> Reconciler:
        replica = self._replica = Replica(engine, self.gate, live)
        reconciler = Reconciler(
            source=self.source,
            replica=replica,
            ledger=self.ledger,
            validate=self._check,
            save=self.state.save,
            publish=self.events.publish,
            rules=make_rules(self.settings),
            min_interval=self.settings.reload.min_interval,
        )
        self.engine.arrive(engine)
        self.control.arrive(Operator(reconciler, source=self.source, replica=replica))
        self.events.publish(GenerationLive(live))
        self.gate.open(live)
        return reconciler

    # --- the parts ---------------------------------------------------------------------

    async def _check(self, revision: Revision, path: Path) -> Checkpoint:
        """Every check, in a thread that is left behind when a read hangs."""
        checks = self.settings.checks
        run = partial(
            check_checkpoint,
            revision,
            path,
            served=self._served if self._served.tensors else None,
            policy=Policy(checks.extra_tensors, checks.dtype_change, checks.nonfinite),
            root=checkpoint_roots(self.settings),
        )

        def work(cancel: threading.Event) -> Checkpoint:
            return run(content_id=self.source.content_of(revision), cancel=cancel)

        return await in_thread(work, leave_as=f"a check of {revision}")

    async def _check_in_time(self, revision: Revision, path: Path) -> Checkpoint:
        within = self.settings.reload.validate_timeout
        async with deadline(within, f"checking {revision}", "[reload] validate_timeout"):
            return await self._check(revision, path)

    def _readings(self) -> Readings:
        """What a scrape asks for; answered with plain numbers while the engine is not there."""
        return Readings(
            inside=lambda: self.gate.inside,
            held=lambda: self.gate.held,
            recompiles=lambda: self.engine.get("recompiles", 0),
            staged_bytes=lambda: self._replica.staged_bytes if self._replica else 0,
            weights=self._weights_held,
            lost_at=lambda: self.ledger.lost_at,
        )

    def _weights_held(self) -> dict[str, int]:
        """Bytes by place; what is kept on the host is no longer on the device."""
        replica = self._replica
        if replica is None:
            return {}
        on_device = self.settings.reload.keep_previous == "device"
        previous = replica.previous if on_device else None
        return {
            "live": replica.live.bytes,
            "previous": previous.bytes if previous else 0,
            "staged": replica.staged.bytes if replica.staged else 0,
        }

    def _is_engine_alive(self, within: float) -> bool:
        """Whether its scheduler thread was seen lately; nobody looks before it is there."""
        is_turning: Callable[[float], bool] | None = self.engine.get("is_turning", None)
        return is_turning is None or is_turning(within)

    def _make_server(self, lasting: bool) -> HttpServer:
        server = self.settings.server
        limits = Limits(**server.limits.model_dump())
        group = server.admin_group
        app = create_app(
            gate=self.gate,
            engine=self.engine,
            control=self.control,
            view=View(self.status, self.history),
            events=self.events,
            metrics=self.metrics,
            limits=limits,
            admin_group=group_id(group, "[server] admin_group") if group else None,
            replay=self.settings.reload.on_drain_timeout == "replay",
            webhook=self._webhook,
            model_name=model_name(self.settings),
            hosts=server.hosts,
        )
        grace = STOP_DEADLINE + ABORT_GRACE
        http = HttpServer(app, limits=limits, graceful_seconds=grace, lasting=lasting)
        self.events.subscribe(http.observe)
        return http

    def _take_signals(self) -> None:
        """Once at the start, and again after the engine's: XLA installs a SIGTERM handler."""
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: partial(self.source.wake, "signal"),
        }
        for number, handler in handlers.items():
            asyncio.get_running_loop().add_signal_handler(number, handler)

    def stop(self) -> None:
        """Leave in order; a second time, at once."""
        signal.alarm(0)  # XLA's handler, until ours are taken again, aborts us in 3 s
        if self._stop.is_set():
            log.warning("daemon.stopped_at_once: asked to stop a second time")
            os._exit(EXIT_FORCED)
        log.info("daemon.stopping")
        self._stop.set()

    def _seal(self, why: Exception) -> None:
        self.gate.seal(str(why), code=getattr(why, "code", "engine_lost"))
