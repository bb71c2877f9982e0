"""START HERE: builds the parts, joins them, supervises them.

The parts know each other only through the core's ports, the gate and events. Whatever ends the
daemon, the gate is sealed first, so that nobody is answered by weights nobody vouches for.
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checks.files import Digests
from hotreload.core.attempts import Attempts
from hotreload.core.course import Course
from hotreload.core.operator import Operator
from hotreload.core.reconcile import Reconciler
from hotreload.core.replica import Replica
from hotreload.core.replicas import Replicas
from hotreload.core.switch import ABORT_GRACE
from hotreload.errors import ConfigError, DeviceUnavailable, DrainTimedOut, EngineLost
from hotreload.events import Events, GenerationLive, Leaving
from hotreload.life.boot import Start
from hotreload.life.checking import Checking
from hotreload.life.first_switch import FirstSwitch
from hotreload.life.joints import Arrival, Control, Serving, View, readings
from hotreload.life.lasting import tasks_of
from hotreload.life.parts import (
    admin_group,
    api_keys,
    checkpoint_roots,
    choose_mode,
    listening,
    longest_boot,
    make_entrance,
    make_metrics,
    make_rules,
    make_source,
    make_webhook,
    model_name,
)
from hotreload.life.replica_life import ReplicaLife, Shared
from hotreload.life.rereading import Rereading
from hotreload.life.running import RunningEngine
from hotreload.life.start_engine import start_engine, start_twin
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
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Generation

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
        self.entrance = make_entrance(settings, self.events.publish)
        self.rereading = Rereading(settings, read, self.events.publish, self.entrance, self.limits)
        self.attempts = Attempts(
            self.ledger,
            save=self.state.save,
            publish=self.events.publish,
            is_lost=lambda: self.entrance.is_lost,
        )
        self.rules = make_rules(settings)
        self.digests = Digests()
        """Digests of files that the source or the checks have read; both look here first."""
        self.source = make_source(settings, self.events.publish, self.ledger, self.digests)
        self.checking = Checking(
            lambda: self.rereading.settings,
            content_of=self.source.content_of,
            roots=checkpoint_roots(settings),
            digests=self.digests,
        )
        self.arrival = Arrival()
        self.history = History(self.ledger.history, self.ledger.pins)
        self.status = Status(
            ledger_view=lambda: self.ledger,
            entrance=self.entrance,
            tp=settings.engine.tp,
            last_attempt=self.history.last,
            source_kind=settings.source.kind,
        )
        self.checkpoints = Checkpoints(listed=self.source.listed, ledger=lambda: self.ledger)
        look = readings(
            entrance=self.entrance,
            arrival=self.arrival,
            ledger=self.ledger,
            previous_is_on_device=settings.reload.keep_previous == "device",
        )
        self.metrics = make_metrics(settings, look)
        self.systemd = Systemd(
            Notifier(),
            is_alive=self.arrival.is_turning,
            longest_boot=longest_boot(settings),
            replicas=settings.engine.replicas,
        )
        shown = (self.history, self.status, self.checkpoints)
        for observer in (LogObserver(), *shown, self.metrics, self.systemd):
            self.events.subscribe(observer.observe)
        self._webhook = make_webhook(settings, self.source.wake)
        self._api_keys = api_keys(settings)
        self._stop = asyncio.Event()
        self._ended_by: Exception | None = None
        self._lasting: dict[str, Run] = {}
        self._by_index: dict[int, Replica[RunningEngine]] = {}
        """The engines that there are, behind their gates."""

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
            validate=self.checking,
            serve=self.checking.serve,
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
            self.entrance.seal("hotreload is leaving", code="stopping")  # whatever the reason is
            self.arrival.serving = None
            engines = [replica.engine for replica in self._by_index.values()]
            for engine in (switch.engine, *engines):
                if engine is not None:
                    await uninterrupted(engine.close())

    async def _start_engine(
        self, model: Path, weights: Checkpoint | None, course: Course
    ) -> RunningEngine:
        engine = await start_engine(self.settings, model, weights, course)
        if not self.checking.served.tensors:  # a folder without weights; now there are some
            tensors = weights.tensors if weights else engine.expected_tensors()
            self.checking.serve(replace(self.checking.served, tensors=tensors))
        log.info("engine.started", extra=engine.facts())
        return engine

    async def _start_twin(self, index: int, twin: RunningEngine) -> RunningEngine:
        engine = await start_twin(self.rereading.settings, index, twin)
        self._take_signals()
        log.info("engine.started", extra={**engine.facts(), "replica": index})
        return engine

    async def _wait_for_stop(self, http: HttpServer) -> None:
        """SIGTERM: refuse newcomers, let those inside be answered, then end everything.

        Newcomers on a socket that outlives us are not refused: the next of us answers them.
        """
        await self._stop.wait()
        patience = STOP_DEADLINE
        if http.lasting:
            await http.leave(patience)
            patience = 0
        self.entrance.seal("hotreload is stopping", code="stopping")
        try:
            await self.entrance.drained(patience)
        except DrainTimedOut as late:
            log.warning("daemon.stop_deadline", extra={"cause": str(late)})
            if (serving := self.arrival.serving) is not None:
                for replica in serving.replicas:
                    await replica.engine.abort()  # so that clients hear why
            with suppress(DrainTimedOut):
                await self.entrance.drained(ABORT_GRACE)
        raise Stopped

    def _join(self, engine: RunningEngine, live: Generation) -> None:
        """Open the gate to an engine; the tasks in `_lasting` must run as long as it is open."""
        self._take_signals()
        chosen = choose_mode(self.settings, engine)
        replica = Replica(engine, self.entrance.gates[0], live, chosen.mode)
        self._by_index[replica.index] = replica
        replicas = Replicas(self._by_index)
        reconciler = Reconciler(
            source=self.source,
            replicas=replicas,
            attempts=self.attempts,
            validate=self.checking,
            rules=self.rules,
            min_interval=self.settings.reload.min_interval,
        )
        publish = self.events.publish
        operator = Operator(reconciler, source=self.source, replicas=replicas, publish=publish)
        self.arrival.serving = Serving(replicas, operator)
        publish(chosen)
        replica.open()
        publish(GenerationLive(live, replica.index))
        shared = Shared(
            entrance=self.entrance,
            by_index=self._by_index,
            replicas=replicas,
            start=self._start_twin,
            judge=self.rereading.have_judge,
            tasks=partial(
                tasks_of,
                settings=self.settings,
                reconciler=reconciler,
                operator=operator,
                publish=publish,
            ),
            publish=publish,
            backoff=self.attempts.backoff,
            probe_within=lambda: reconciler.rules.probe_timeout,
            starting=asyncio.Lock(),
        )
        self._lasting = {
            "reconcile": reconciler.run,
            "save what is not": partial(self.state.keep_trying, self.ledger),
            "reread the settings": partial(self.rereading.run, replicas, reconciler),
            **{
                f"engine {index}": ReplicaLife(index, shared).run
                for index in range(self.settings.engine.replicas)
            },
        }

    # --- the parts ---------------------------------------------------------------------

    def _make_server(self, lasting: bool) -> HttpServer:
        server = self.settings.server
        app = create_app(
            gate=self.entrance,
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
        self.entrance.seal(str(why), code=getattr(why, "code", "engine_lost"))
