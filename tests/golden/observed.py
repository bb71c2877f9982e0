"""All that is told of a life: the one place where the golden tests name the observers.

Every observer of a daemon sees the same events here, by one clock that a test moves.
"""

import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from hotreload.core.ledger import Ledger
from hotreload.events import AttemptFinished, Event, Events, event_fields
from hotreload.facts.listed import Listed
from hotreload.features.bake.evidence import Bake
from hotreload.features.compare.replay import HearingNow
from hotreload.observe import log, systemd
from hotreload.observe.log import LogObserver
from hotreload.observe.metrics import Metrics
from hotreload.observe.systemd import Systemd
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.picture import KeyFigures, Picture, Rank, Readings, ReplicaFigures, Setup
from hotreload.picture.status import Status
from hotreload.server.http.request_log import COUNTED_FROM_THE_START
from hotreload.types import AnsweringGeneration, EngineLoad, Outcome
from tests.clock import Clock
from tests.evidence import REASONS, WORD
from tests.observe.things import NOON, reports

Fields = dict[str, Any]
FAILURES = {Outcome.REJECTED, Outcome.POSTPONED, Outcome.LOST}


@dataclass
class AtGate:
    """The gate before one engine: who is answered there, and how many wait."""

    inside: int = 0
    held: int = 0
    now: Sequence[AnsweringGeneration] = ()

    def list_answering(self) -> Sequence[AnsweringGeneration]:
        return self.now


@dataclass
class Gates:
    """The gates before all engines."""

    gates: list[AtGate]

    def list_answering(self) -> Sequence[AnsweringGeneration]:
        return self.gates[0].list_answering()


@dataclass
class Listener:
    """Stands where systemd listens."""

    heard: list[str] = field(default_factory=list)
    watchdog: float | None = None

    def send(self, *lines: str) -> None:
        self.heard.append(" | ".join(lines))


@dataclass(frozen=True)
class Scene:
    """What happens next: to what observers look at, and then by events."""

    name: str
    events: Sequence[Event] = ()
    turn: Callable[["Observed"], object] = lambda observed: None


class Observed:
    """A daemon's observers, and what they look at beside the events."""

    def __init__(self, engines: int = 1, rank: Rank | None = None, kind: str = "directory") -> None:
        self.clock = Clock(NOON)
        self.ledger = Ledger()
        self.gates = Gates([AtGate() for _ in range(engines)])
        self.listed: list[Listed] = []
        self.paused = 0
        """How many wait for the end of a pause."""
        self.bake: Bake | None = None
        """How clients' answers judge what is live."""
        self.hearing: HearingNow | None = None
        """Requests of clients that are heard."""
        self.listener = Listener()
        self.events = Events()
        self.picture = Picture(
            self.ledger,
            setup=Setup(replicas=engines, tp=2, workers=engines, source_kind=kind, rank=rank),
            readings=self._readings(),
            reports=reports(
                self.ledger,
                self.clock,
                bake=lambda: self.bake,
                hearing=lambda: self.hearing,
                paused=lambda: self.paused,
            ),
            word=WORD,
            clock=self.clock,
            wall=self.clock,
        )
        self.history = self.picture.history
        self.status = Status(self.picture, named=lambda: [*reversed(self.ledger.refused)])
        self.checkpoints = Checkpoints(self.picture, lambda: self.listed, clock=self.clock)
        self.metrics = Metrics(
            self.picture,
            max_leaves=3,
            expect_every=3600,
            routes=COUNTED_FROM_THE_START,
            reasons=REASONS,
            clock=self.clock,
        )
        self.systemd = Systemd(
            self.picture,
            self.listener,  # type: ignore[arg-type]  # it sends to nobody
            is_alive=lambda within: True,
        )
        for observer in (self.picture, self.metrics, self.systemd):
            self.events.subscribe(observer.observe)

    def _readings(self) -> Readings:
        load = EngineLoad(waiting=1, running=2, kv_requests=30, kv_prefixes=40, kv_free=50)
        return Readings(
            replicas=lambda: [
                ReplicaFigures(
                    inside=gate.inside,
                    held=gate.held,
                    answering=gate.list_answering(),
                    load=load,
                    recompiles=3,
                    staged_bytes=600,
                    weights={"live": 100, "previous": 100, "staged": 50},
                )
                for gate in self.gates.gates
            ],
            answering=self.gates.list_answering,
            silences=lambda: {1: 0.5},
            keys=lambda: {"evals": KeyFigures(4, 2, 1, 800)},
        )

    def play(self, scene: Scene) -> None:
        """Let it happen, ten seconds after what happened before."""
        self.clock.now += 10
        scene.turn(self)
        for event in scene.events:
            if isinstance(event, AttemptFinished):
                self.ledger.attempts.appendleft(event.attempt)  # before anybody hears of it
            self.events.publish(event)

    def is_logged(self) -> None:
        """Have the log tell of it, too."""
        self.events.subscribe(LogObserver(self.picture.pace, self.clock).observe)

    def told(self, event: Event) -> Fields:
        """An event, as /events tells it."""
        return self.status.event(event)


def told_shortly(event: Event) -> str:
    """An event in a line: its name, and of its fields those that say something, without seconds."""
    fields = event_fields(event)
    name = fields.pop("event")
    if "phases" in fields:
        fields["phases"] = [*fields["phases"]]
    said = {key: value for key, value in fields.items() if value not in (None, "", [], {}, False)}
    return " ".join([name, *(f"{key}={json.dumps(value)}" for key, value in said.items())])


@contextmanager
def logging_to(stream: io.StringIO, format: str, level: str = "debug") -> Iterator[None]:
    """Have the log written there, and all loggers afterwards as they were."""
    loggers = [logging.getLogger(name) for name in ("", "hotreload", *log.LIBRARIES)]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    log.configure(level, format, stream)
    try:
        yield
    finally:
        for logger, (handlers, threshold, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(threshold)
        logging.captureWarnings(False)
        structlog.reset_defaults()


def systemd_hears_all_progress(patch: pytest.MonkeyPatch) -> None:
    """Have it told of progress however soon after the last word."""
    patch.setattr(systemd, "PROGRESS_STATUS_SECONDS", 0.0)
