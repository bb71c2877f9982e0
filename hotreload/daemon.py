"""START HERE: builds the parts, joins them, supervises them.

The parts know each other only through the core's ports, the gate and events. Whatever ends the
daemon, the gate is sealed first, so that nobody is answered by weights nobody vouches for.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.core.recording import Attempts
from hotreload.core.switch import ABORT_GRACE
from hotreload.errors import (
    ConfigError,
    DeviceUnavailable,
    DrainTimedOut,
    EngineLost,
    RankLeft,
    first_of,
)
from hotreload.events import Events, Leaving
from hotreload.hosts.life.follow import Follow, FollowerRefusal
from hotreload.hosts.life.lead import make_lead
from hotreload.life.checking import Checking
from hotreload.life.common import Common
from hotreload.life.deciding import Deciding
from hotreload.life.doubt import Doubt
from hotreload.life.files_gone import FilesGone
from hotreload.life.gone import Gone
from hotreload.life.joints import Arrival, Control, View, readings
from hotreload.life.parts import (
    admin_group,
    api_keys,
    checkpoint_roots,
    listening,
    longest_boot,
    make_entrance,
    make_metrics,
    make_rules,
    make_source,
    make_webhook,
    model_name,
    trusting_ranks_of,
)
from hotreload.life.rereading import Rereading
from hotreload.life.secret_files import SecretFiles, secret_reads
from hotreload.life.state import StateFile
from hotreload.observe.log import LogObserver
from hotreload.observe.systemd import Notifier, Systemd
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.picture import Picture, Rank, Setup, State
from hotreload.picture.status import Status
from hotreload.server.app import create_app
from hotreload.server.bounds import Limits
from hotreload.server.doors import Doors
from hotreload.server.http_server import HttpServer
from hotreload.server.listening import turn_away
from hotreload.settings.load import Settings

log = logging.getLogger("hotreload")

STOP_DEADLINE = 30.0
"""How long requests under way may take to end after SIGTERM."""

EXIT_OK, EXIT_FORCED, EXIT_NO_DEVICE, EXIT_ENGINE_LOST, EXIT_BAD_CONFIG = 0, 1, 69, 70, 78


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
        self.secrets = SecretFiles(secret_reads(settings), self.rereading.refused)
        self.ranks = ranks = trusting_ranks_of(settings)
        rank = Rank(ranks.own, ranks.count, ranks.address) if ranks else None
        self.lead = make_lead(settings, ranks, self.ledger, save=self.state.save, lose=self._lose)
        """On rank 0 of several hosts, what takes the others along."""
        self.attempts = Attempts(
            self.ledger,
            save=self.lead.save if self.lead else self.state.save,
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
        self.picture = Picture(
            self.ledger,
            setup=Setup(
                replicas=settings.engine.replicas,
                tp=settings.engine.tp,
                source_kind=settings.source.kind,
                rank=rank,
            ),
            readings=readings(
                entrance=self.entrance,
                arrival=self.arrival,
                previous_is_on_device=settings.reload.keep_previous == "device",
                heard=self.lead.heard if self.lead else dict,
            ),
        )
        """How things are; it hears of every event before those who tell of it."""
        self.status = Status(self.picture, holds=self.source.holds)
        self.checkpoints = Checkpoints(self.picture, self.source.listed)
        self.metrics = make_metrics(settings, self.picture)
        self.systemd = Systemd(
            self.picture,
            Notifier(),
            is_alive=self.arrival.is_turning,
            longest_boot=longest_boot(settings),
        )
        telling = (LogObserver(self.picture.pace), self.metrics, self.systemd)
        self.doubt = Doubt(self.events.publish)
        self.gone = Gone(self.events.publish)
        self.files_gone = FilesGone(self.ledger, self.source, self.events.publish)
        """What tells of troubles with what a start found, or would find."""
        troubled = (self.doubt, self.gone, self.files_gone)
        for observer in (self.picture, *telling, *troubled):
            self.events.subscribe(observer.observe)
        self._webhook = make_webhook(settings, self.source.wake)
        self._api_keys = api_keys(settings)
        self.doors = Doors(self.events.publish)
        self._stop = asyncio.Event()
        self._ended_by: BaseException | None = None
        self.part = self._make_part()
        """What this host does in its life: it decides, or it follows the one that does."""

    # --- a life ------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop or the engine is lost; return the exit code."""
        with listening(self.settings, self.metrics, self.state.folder) as at:
            self._take_signals()
            http = self._make_server(at.are_lasting)
            serving = asyncio.create_task(http.serve(at.sockets))
            beside = [asyncio.create_task(each) for each in self._beside()]
            try:
                return await self._live(http)
            finally:
                http.stop()
                await serving
                if at.are_lasting and isinstance(self._ended_by, ConfigError):
                    turn_away(at.sockets, self._ended_by)
                await self.source.close()
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)  # the state is written to the folder that we hold

    def _beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What runs from the first moment to the last, whatever the engine does."""
        yield self.systemd.beat()
        yield self.state.watch(self.ledger)
        yield self.secrets.watch()

    async def _live(self, http: HttpServer) -> int:
        code = EXIT_OK
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.part.run(), name="the engine and its weights")
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
        if self._stop.is_set() and isinstance(self._ended_by, RankLeft):
            self.ledger.abandon()
            await self.state.save(self.ledger)
            return EXIT_OK  # all hosts were asked to stop, and another one was quicker
        # A stop that comes while a lost engine is closed must not make it a success.
        if code == EXIT_ENGINE_LOST or self.status.state is State.LOST:
            code = EXIT_ENGINE_LOST
            if isinstance(self._ended_by, RankLeft):
                self.ledger.abandon()  # somebody stopped that host: no checkpoint did
            if not self._goes_with_rank_0:
                self.ledger.lost_at = time.time()  # so that the next life can tell of it
            await self.state.save(self.ledger)
        return code

    def _end(self, causes: BaseExceptionGroup[Any], code: int, event: str) -> int:
        cause: Any = self._ended_by or first_of(causes)  # a rank that left explains what follows
        self._ended_by = cause
        self.entrance.seal(str(cause), code=getattr(cause, "code", "engine_lost"))
        if self._goes_with_rank_0:
            event = "daemon.leaving_with_rank_0"
        log.critical(event, extra={"cause": str(cause), "exit_code": code})
        return code

    def _lose(self, why: EngineLost) -> None:
        """Another host is gone: let nobody in any more, and have who is inside hear of it."""
        if self._ended_by is not None:
            return  # what follows from the first loss is no reason of its own
        self.part.lose(why)
        self._ended_by = why
        code = "stopping" if self._goes_with_rank_0 else why.code
        self.entrance.seal(str(why), code=code)

    @property
    def _goes_with_rank_0(self) -> bool:
        """Whether nothing was lost: rank 0 ended in order, and so does who follows it."""
        return self.lead is None and isinstance(self._ended_by, RankLeft)

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

    # --- the parts ---------------------------------------------------------------------

    def _make_part(self) -> Deciding | Follow:
        common = Common(
            settings=self.settings,
            rereading=self.rereading,
            source=self.source,
            checking=self.checking,
            attempts=self.attempts,
            rules=self.rules,
            state=self.state,
            entrance=self.entrance,
            arrival=self.arrival,
            doubt=self.doubt,
            gone=self.gone,
            files_gone=self.files_gone,
            publish=self.events.publish,
            take_signals=self._take_signals,
        )
        if self.ranks is not None and self.lead is None:
            return Follow(common, self.ranks, lose=self._lose)
        return Deciding(common, self.lead)

    def _make_server(self, lasting: bool) -> HttpServer:
        server = self.settings.server
        elsewhere = FollowerRefusal(self.ranks) if self.ranks and not self.ranks.leads else None
        app = create_app(
            gate=elsewhere or self.entrance,
            control=elsewhere or Control(self.arrival),
            view=View(self.status, self.picture.history, self.checkpoints),
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
        http = HttpServer(
            app,
            doors=self.doors,
            limits=self.limits,
            graceful_seconds=within,
            lasting=lasting,
        )
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
        """Read the settings and secrets again, look for our sockets, and for a checkpoint."""
        self.rereading.ask()
        self.secrets.look_again()
        self.doors.look_again()
        self.source.wake("signal")

    def stop(self) -> None:
        """Leave in order; a second time, at once."""
        signal.alarm(0)  # XLA's handler, until ours are taken again, aborts us in 3 s
        if self._stop.is_set():
            log.warning("daemon.stopped_at_once", extra={"why": "asked to stop a second time"})
            os._exit(EXIT_FORCED)
        self.events.publish(Leaving())
        self._stop.set()
