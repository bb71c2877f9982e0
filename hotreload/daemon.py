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
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checks.check import check_checkpoint
from hotreload.checks.files import Digests
from hotreload.checks.fit import Policy
from hotreload.core.attempts import Attempts
from hotreload.core.course import Course
from hotreload.core.operator import Operator
from hotreload.core.reconcile import Reconciler
from hotreload.core.replica import Replica
from hotreload.core.switch import ABORT_GRACE
from hotreload.errors import ConfigError, DeviceUnavailable, DrainTimedOut, EngineLost
from hotreload.events import Events, GenerationLive, Leaving
from hotreload.life.boot import Start
from hotreload.life.first_switch import FirstSwitch
from hotreload.life.joints import Arrival, Control, Serving, View, readings
from hotreload.life.parts import (
    admin_group,
    api_keys,
    checkpoint_roots,
    choose_mode,
    heeding,
    listening,
    longest_boot,
    make_gate,
    make_metrics,
    make_rules,
    make_source,
    make_webhook,
    model_name,
    seeing_out,
    verifying,
)
from hotreload.life.rereading import Rereading
from hotreload.life.running import RunningEngine
from hotreload.life.start_engine import start_engine
from hotreload.life.state import StateFile
from hotreload.observe.checkpoints import Checkpoints
from hotreload.observe.history import History
from hotreload.observe.log import LogObserver
from hotreload.observe.status import State, Status
from hotreload.observe.systemd import Notifier, Systemd
from hotreload.server.app import create_app
from hotreload.server.limits import Limits
from hotreload.server.sockets import HttpServer
from hotreload.server.turning_away import turn_away
from hotreload.settings.load import Settings
from hotreload.threads import in_thread, uninterrupted
from hotreload.types import Checkpoint, Generation, Revision, Served

log = logging.getLogger("hotreload")

STOP_DEADLINE = 30.0
"""How long requests under way may take to end after SIGTERM."""

EXIT_OK, EXIT_FORCED, EXIT_NO_DEVICE, EXIT_ENGINE_LOST, EXIT_BAD_CONFIG = 0, 1, 69, 70, 78
Run = Callable[[], Coroutine[Any, Any, None]]


class Stopped(Exception):
    """Somebody asked us to stop."""


class Daemon:
    """One engine, one source of checkpoints, one server; `run` is its whole life."""

    def __init__(self, settings: Settings, read: Callable[[], Settings] | None = None) -> None:
        """`read` reads the settings again; without it they stay as they are."""
        self.settings = settings
        self.limits = Limits(**settings.server.limits.model_dump())
        self.events = Events()
        self.state = StateFile(settings.state.directory, self.events.publish)
        self.ledger = self.state.read()
        self.ledger.count_crash(time.time())
        self.gate = make_gate(settings, self.events.publish)
        self.rereading = Rereading(settings, read, self.events.publish, self.gate, self.limits)
        self.attempts = Attempts(
            self.ledger,
            save=self.state.save,
            publish=self.events.publish,
            is_lost=lambda: self.gate.is_lost,
        )
        self.rules = make_rules(settings)
        self.digests = Digests()
        """Digests of files that the source or the checks have read; both look here first."""
        self.source = make_source(settings, self.events.publish, self.ledger, self.digests)
        self.arrival = Arrival()
        self.history = History(self.ledger.history, self.ledger.pins)
        self.status = Status(
            ledger_view=lambda: self.ledger,
            gate_counts=lambda: (self.gate.inside, self.gate.held),
            answering=self.gate.answering,
            last_attempt=self.history.last,
            source_kind=settings.source.kind,
        )
        self.checkpoints = Checkpoints(listed=self.source.listed, ledger=lambda: self.ledger)
        look = readings(
            gate=self.gate,
            arrival=self.arrival,
            ledger=self.ledger,
            previous_is_on_device=settings.reload.keep_previous == "device",
        )
        self.metrics = make_metrics(settings, look)
        self.systemd = Systemd(
            Notifier(), is_alive=self.arrival.is_turning, longest_boot=longest_boot(settings)
        )
        shown = (self.history, self.status, self.checkpoints)
        for observer in (LogObserver(), *shown, self.metrics, self.systemd):
            self.events.subscribe(observer.observe)
        self._webhook = make_webhook(settings, self.source.wake)
        self._api_keys = api_keys(settings)
        self._stop = asyncio.Event()
        self._ended_by: Exception | None = None
        self._served = Served({}, {}, {})
        self._lasting: dict[str, Run] = {}

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
        except* Exception as faults:  # a fault of ours: nobody knows what is whole, so be replaced
            log.critical("daemon.internal_error", exc_info=faults)
            code = self._end(faults, EXIT_ENGINE_LOST, "daemon.internal_error")
        # A stop that comes while a lost engine is closed must not make it a success.
        if code == EXIT_ENGINE_LOST or self.status.state is State.LOST:
            code = EXIT_ENGINE_LOST
            self.ledger.lost_at = time.time()  # so that the next life can tell of it
            await self.state.save(self.ledger)
        return code

    def _end(self, causes: BaseExceptionGroup[Any], code: int, event: str) -> int:
        cause: Any = causes
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        self._ended_by = cause
        self._seal(cause)
        log.critical(event, extra={"cause": str(cause), "exit_code": code})
        return code

    async def _boot_and_reconcile(self) -> None:
        switch = FirstSwitch(self.attempts, start_engine=self._start_engine, go_live=self._join)
        start = Start(
            self.settings,
            attempts=self.attempts,
            source=self.source,
            validate=self._check,
            serve=self._serve,
            switch=switch,
            rules=self.rules,
        )
        try:
            await start.run()
            gc.freeze()  # the start's objects stay for good: spare them every later collection
            async with asyncio.TaskGroup() as tasks:
                for name, run in self._lasting.items():
                    tasks.create_task(run(), name=name)
        finally:
            self.gate.seal("hotreload is leaving", code="stopping")  # whatever the reason is
            self.arrival.serving = None
            if switch.engine is not None:
                await uninterrupted(switch.engine.close())

    def _serve(self, served: Served) -> None:
        self._served = served

    async def _start_engine(
        self, model: Path, weights: Checkpoint | None, course: Course
    ) -> RunningEngine:
        engine = await start_engine(self.settings, model, weights, course)
        if not self._served.tensors:  # a folder without weights; now there are some
            tensors = weights.tensors if weights else engine.expected_tensors()
            self._served = replace(self._served, tensors=tensors)
        log.info("engine.started", extra=engine.facts())
        return engine

    async def _seal_when_lost(self, engine: RunningEngine) -> None:
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
        patience = STOP_DEADLINE
        if http.lasting:
            await http.leave(patience)
            patience = 0
        self.gate.seal("hotreload is stopping", code="stopping")
        try:
            await self.gate.drained(patience)
        except DrainTimedOut as late:
            log.warning("daemon.stop_deadline", extra={"cause": str(late)})
            if (serving := self.arrival.serving) is not None:
                await serving.replica.engine.abort()  # so that clients hear why
            with suppress(DrainTimedOut):
                await self.gate.drained(ABORT_GRACE)
        raise Stopped

    def _join(self, engine: RunningEngine, live: Generation) -> None:
        """Open the gate to an engine; the tasks in `_lasting` must run as long as it is open."""
        self._take_signals()
        chosen = choose_mode(self.settings, engine)
        replica = Replica(engine, self.gate, live, chosen.mode)
        reconciler = Reconciler(
            source=self.source,
            replica=replica,
            attempts=self.attempts,
            validate=self._check,
            rules=self.rules,
            min_interval=self.settings.reload.min_interval,
        )
        publish = self.events.publish
        operator = Operator(reconciler, source=self.source, replica=replica, publish=publish)
        self.arrival.serving = Serving(replica, operator)
        publish(chosen)
        replica.open()
        publish(GenerationLive(live, replica.index))
        self._lasting = {
            "reconcile": reconciler.run,
            "watch the engine": partial(self._seal_when_lost, engine),
            "save what is not": partial(self.state.keep_trying, self.ledger),
            "heed answers": heeding(self.settings, reconciler, replica, operator, publish),
            "reread the settings": partial(self.rereading.run, engine, reconciler),
            "see old generations out": seeing_out(self.settings, replica, publish),
            **verifying(self.settings, replica, publish),
        }

    # --- the parts ---------------------------------------------------------------------

    async def _check(self, revision: Revision, path: Path) -> Checkpoint:
        """Every check, in a thread that is left behind when a read hangs."""
        checks = self.rereading.settings.checks
        run = partial(
            check_checkpoint,
            revision,
            path,
            served=self._served,
            policy=Policy(checks.extra_tensors, checks.dtype_change, checks.nonfinite),
            root=checkpoint_roots(self.settings),
            digests=self.digests,
        )

        def work(cancel: threading.Event) -> Checkpoint:
            return run(content_id=self.source.content_of(revision), cancel=cancel)

        return await in_thread(work, leave_as=f"a check of {revision}")

    def _make_server(self, lasting: bool) -> HttpServer:
        server = self.settings.server
        app = create_app(
            gate=self.gate,
            control=Control(self.arrival),
            view=View(self.status, self.history, self.checkpoints),
            events=self.events,
            metrics=self.metrics,
            limits=self.limits,
            admin_group=admin_group(self.settings),
            replay=self.settings.reload.on_drain_timeout == "replay",
            webhook=self._webhook,
            model_name=model_name(self.settings),
            hosts=server.hosts,
            origins=server.cors_origins,
            keys=self._api_keys,
            access_log=server.access_log,
        )
        within = STOP_DEADLINE + ABORT_GRACE
        http = HttpServer(app, limits=self.limits, graceful_seconds=within, lasting=lasting)
        self.events.subscribe(http.observe)
        return http

    def _take_signals(self) -> None:
        """Once at the start, and again after the engine's: XLA installs a SIGTERM handler."""
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: self.look_anew,
        }
        for number, handler in handlers.items():
            asyncio.get_running_loop().add_signal_handler(number, handler)

    def look_anew(self) -> None:
        """Read the settings again, and look for a checkpoint now."""
        self.rereading.ask()
        self.source.wake("signal")

    def stop(self) -> None:
        """Leave in order; a second time, at once."""
        signal.alarm(0)  # XLA's handler, until ours are taken again, aborts us in 3 s
        if self._stop.is_set():
            log.warning("daemon.stopped_at_once", extra={"why": "asked to stop a second time"})
            os._exit(EXIT_FORCED)
        self.events.publish(Leaving())
        self._stop.set()

    def _seal(self, why: Exception) -> None:
        self.gate.seal(str(why), code=getattr(why, "code", "engine_lost"))
