"""START HERE: builds the daemon's parts, joins them, and supervises them.

The parts know each other only through the core's ports, the gate and events. Before the daemon ends
it seals the gate: no request is answered by weights of unknown state.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from socket import socket
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.core.attempt_records import Attempts
from hotreload.core.decision import learn_all
from hotreload.core.switch import ABORT_GRACE
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import ConfigError, DeviceUnavailable, DrainTimedOut, EngineLost
from hotreload.events import Events, StopRequested
from hotreload.feature import AllFeatures, Feature, Given
from hotreload.features import FEATURES
from hotreload.hosts.life.follower import FollowerLife, FollowerRefusal
from hotreload.hosts.life.lead import Lead
from hotreload.hosts.life.rank_group import ranks_with_secret
from hotreload.life.from_settings import Observers, make_source
from hotreload.life.live_settings import (
    CheckpointChecks,
    LiveSettings,
    SecretFiles,
    digest_of_probes,
)
from hotreload.life.running_engine import RunningEngine
from hotreload.life.saved.state import StateFile
from hotreload.life.serving_life import ServingLife
from hotreload.life.serving_slot import ServingSlot
from hotreload.life.shutdown import FORCED, Shutdown, make_last_life_event
from hotreload.life.start.start_troubles import FilesGone
from hotreload.life.workers import Workers, counted_workers
from hotreload.observe.log import ReadyLine, is_read_in_terminal
from hotreload.observe.metrics_page import page_at
from hotreload.picture.picture import Rank, State
from hotreload.quiet import LOUD, Quiet
from hotreload.server.app import create_app
from hotreload.server.from_settings import app_rules, bind_sockets, hold_systemd_sockets
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.server_sockets import refuse_clients
from hotreload.server.http.socket_paths import SocketPaths
from hotreload.server.key_limits import KeyLimits
from hotreload.settings.load import Settings

log = logging.getLogger("hotreload")

STOP_DEADLINE = 30.0
"""Time in which requests under way may end after SIGTERM."""


class Stopped(Exception):
    """A signal asked the daemon to stop."""


class Daemon:
    """One engine, one source of checkpoints, one server; `run` is its whole life."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings] | None = None,
        features: Sequence[Feature] = FEATURES,
    ) -> None:
        """`read` reads the settings again; without it they never change."""
        self.settings = settings
        self.events = Events()
        publish = self.events.publish
        self.state = StateFile(settings.state.directory, publish)
        self.events.subscribe(self.state.observe)
        self.ledger = self.state.read()
        self.ledger.source = settings.source.name
        learn_all(self.ledger)
        self.ledger.count_crash(time.time())
        self.ledger.judge_by(digest_of_probes(settings))
        self.entrance = Entrance[RunningEngine](
            publish,
            replicas=settings.engine.replicas,
            max_held=settings.reload.max_held,
            hold_arrivals=settings.reload.while_closed == "hold",
        )
        self.slot = ServingSlot(self.entrance)
        """The engines that serve, once the start has put them here, for the server, metrics and
        systemd."""
        self.live_settings = LiveSettings(settings, read, publish, self.entrance)
        self.limits = self.live_settings.limits
        self.secrets = SecretFiles(settings, self.live_settings.refused)
        self.key_limits = KeyLimits(self.secrets.keys.values())
        self.ranks = ranks = ranks_with_secret(settings)  # None where there is one host
        self.lead: Lead | None = None
        """On rank 0 of several hosts, the object that has the other hosts do each step, too."""
        if ranks is not None and ranks.leads:
            self.lead = Lead(settings, ranks, self.ledger, self.state.save, self._lose)
        self.attempts = Attempts(
            self.ledger,
            write=self.lead.save if self.lead else self.state.save,
            publish=publish,
            is_lost=lambda: self.entrance.is_lost,
            note_next_number=self.state.note_next_number,
            blank=tuple(each.blank for each in features if each.blank),
        )
        self.features = AllFeatures([each.begin(self._given_to(each)) for each in features])
        self.entrance.admissions = self.features.admissions
        # Digests of files that the source or the checks have read, for both.
        digests = Digests(self.ledger.contents, self._quiet)
        self.source = make_source(settings, publish, self.ledger, digests)
        self.checking = CheckpointChecks(
            self.live_settings,
            content_of=self.source.content_of,
            roots=settings.checkpoint_roots,
            digests=digests,
        )
        self.observers = Observers(
            settings,
            self.events,
            ledger=self.ledger,
            slot=self.slot,
            source=self.source,
            features=self.features,
            word={each.blank.name: each.words for each in features if each.blank and each.words},
            reasons=[code for each in features for code in each.reasons],
            rank=Rank(ranks.own, ranks.count, ranks.address) if ranks else None,
            silences=self.lead.silences if self.lead else dict,
            keys=self.key_limits.figures,
        )
        self.status, self.metrics = self.observers.status, self.observers.metrics
        # After the log and the status: a feature's events on weights follow those of the attempt.
        for observe in self.features.observers:
            self.events.subscribe(observe)
        self.files_gone = FilesGone(self.ledger, self.source, publish)
        self.events.subscribe(self.files_gone.observe)
        self.socket_paths = SocketPaths(publish)
        self.workers = Workers(
            counted_workers(settings.server.workers),
            live_settings=self.live_settings,
            keys=self.secrets.keys,
            metrics=self.metrics,
            live=lambda: self.status.picture.live,
            engines=self.slot.engines,
            publish=publish,
        )
        self.events.subscribe(self.workers.observe)
        elsewhere = FollowerRefusal(ranks) if ranks and not ranks.leads else None
        self.app = create_app(
            entrance=elsewhere or self.entrance,
            operator=(elsewhere or self.slot).operator,
            documents=self.observers.documents,
            events=self.events,
            metrics=self.metrics,
            listeners=self.features.listeners,
            routes=self.features.routes,
            limits=self.limits,
            rules=app_rules(settings, self.source.wake, self.secrets.keys, self.key_limits),
            counts=self.workers.counts,
        )
        follows = elsewhere is not None
        self.shutdown = Shutdown(self.entrance, self.ledger, self.state.save, follows=follows)
        self._stop = asyncio.Event()
        self.life = self._make_follower() if follows else self._make_serving_life()

    def _quiet(self) -> Quiet:
        """Return how much of the machine staging may use: all of it before requests come."""
        engine, serves = self.settings.engine, self.slot.filled.is_set()
        return Quiet(1, engine.staging_priority, engine.staging_starve) if serves else LOUD

    def _given_to(self, feature: Feature) -> Given:
        return Given(
            settings=lambda: self.live_settings.settings,
            limits=self.limits,
            entrance=self.entrance,
            engines=self.slot.engines,
            attempts=self.attempts,
            leave=self.slot.make_leave(feature.name),
        )

    def _make_serving_life(self) -> ServingLife:
        return ServingLife(
            self.slot,
            self.events,
            live_settings=self.live_settings,
            source=self.source,
            checking=self.checking,
            attempts=self.attempts,
            features=self.features,
            started=self._take_signals,
            others=self.lead,
        )

    def _make_follower(self) -> FollowerLife:
        assert self.ranks is not None, "there are others to follow"
        return FollowerLife(
            self.settings,
            self.ranks,
            self.slot,
            source=self.source,
            checking=self.checking,
            attempts=self.attempts,
            report_loss=self._lose,
            started=self._take_signals,
        )

    # --- a life ------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until a signal or the loss of the engine; return the exit code."""
        server = self.settings.server
        with (
            hold_systemd_sockets() as passed,
            self.state.folder.hold(server.socket),
            bind_sockets(server, passed) as sockets,
            page_at(self.settings.metrics.address, self.metrics.latest) as metrics,
        ):
            if is_read_in_terminal(self.settings.log.format):
                follows = self.ranks is not None and not self.ranks.leads
                line = ReadyLine(sockets, metrics, tls=bool(self.secrets.tls), follows=follows)
                self.events.subscribe(line.observe)
            if (died := self.state.folder.died) is not None:
                self.events.publish(make_last_life_event(died, self.ledger, self.settings))
            return await self._serve(sockets, are_held=bool(passed))

    async def _serve(self, sockets: list[socket], *, are_held: bool) -> int:
        self._take_signals()
        http = HttpServer(
            self.app,
            socket_paths=self.socket_paths,
            limits=self.limits,
            graceful_seconds=STOP_DEADLINE + ABORT_GRACE,
            held_by_systemd=are_held,
            counts=self.workers.counts,
            other_process=self.workers,
        )
        self.events.subscribe(http.observe)
        serving = asyncio.create_task(http.serve(sockets, self.secrets.tls))
        running_workers = self.workers.run(
            self.app.state.model,
            http.adopt,
            graceful_seconds=STOP_DEADLINE + ABORT_GRACE,
            linger_seconds=http.linger_seconds,
        )
        working = asyncio.create_task(running_workers, name="workers")
        beside = [asyncio.create_task(each) for each in self._list_background()]
        try:
            return await self._live(http)
        finally:
            http.stop()
            self.workers.shut_down()
            await serving
            await working
            if are_held and isinstance(self.shutdown.cause, ConfigError):
                refuse_clients(sockets, self.shutdown.cause)
            await self.source.close()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)  # the state is written to the folder that we hold

    def _list_background(self) -> Iterable[Coroutine[Any, Any, None]]:
        """List the tasks that run from the first moment to the last, whatever the engine does."""
        yield self.observers.systemd.beat()
        yield self.state.watch(self.ledger)
        yield self.secrets.watch(self.workers.send_settings)

    async def _look_for_files(self) -> None:
        await self.slot.filled.wait()
        await self.files_gone.run(self.slot.keeps)

    async def _live(self, http: HttpServer) -> int:
        code = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.life.run(), name="the engine and its weights")
                tasks.create_task(self._look_for_files(), name="look for files")
                tasks.create_task(self._wait_for_stop(http), name="wait for a signal")
        except* Stopped:
            await self.shutdown.end_cleanly()
        except* ConfigError as faults:
            code = self.shutdown.fail(faults, ConfigError.exit_code, "daemon.bad_config")
        except* DeviceUnavailable as faults:
            code = self.shutdown.fail(faults, DeviceUnavailable.exit_code, "daemon.no_device")
        except* EngineLost as losses:
            code = self.shutdown.fail(losses, EngineLost.exit_code, "daemon.engine_lost")
        except* Exception as faults:  # our own fault: the state is unknown, so exit and restart
            log.critical("daemon.internal_error", exc_info=faults)
            code = self.shutdown.fail(faults, EngineLost.exit_code, "daemon.internal_error")
        return await self.shutdown.settle(
            code, is_lost=self.observers.picture.state is State.LOST, was_asked=self._stop.is_set()
        )

    def _lose(self, why: EngineLost) -> None:
        """Another host is gone: seal the gate, and end the requests inside with the reason."""
        if self.shutdown.cause is None:
            self.life.lose(why)
            self.shutdown.lose(why)

    async def _wait_for_stop(self, http: HttpServer) -> None:
        """On SIGTERM refuse new requests, let those inside end, then end everything.

        On a socket that outlives us none is refused: the next process answers them.
        """
        await self._stop.wait()
        patience = STOP_DEADLINE
        if http.held_by_systemd:
            await http.stop_within(patience)
            patience = 0
        self.entrance.seal("hotreload is stopping", code="stopping")
        try:
            await self.entrance.wait_until_empty(patience)
        except DrainTimedOut as late:
            log.warning("daemon.stop_deadline", extra={"cause": str(late)})
            await self.slot.abort()
            with suppress(DrainTimedOut):
                await self.entrance.wait_until_empty(ABORT_GRACE)
        raise Stopped

    def _take_signals(self) -> None:
        """Install the signal handlers; again after the engine's start, as XLA installs one for
        SIGTERM."""
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: self.look_anew,
        }
        for number, handler in handlers.items():
            asyncio.get_running_loop().add_signal_handler(number, handler)

    def look_anew(self) -> None:
        """On SIGHUP read settings and secrets again, look for our sockets, and for a checkpoint."""
        self.live_settings.ask()
        self.secrets.look_again()
        self.socket_paths.check_now()
        self.source.wake("signal")

    def stop(self) -> None:
        """Stop in order; a second call exits at once."""
        signal.alarm(0)  # XLA's handler, before ours is installed again, aborts us in 3 s
        if self._stop.is_set():
            log.warning("daemon.stopped_at_once", extra={"why": "asked to stop a second time"})
            os._exit(FORCED)
        self.events.publish(StopRequested())
        self._stop.set()
