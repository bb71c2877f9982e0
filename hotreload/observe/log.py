"""Writes the log: one line for each thing worth reading at three in the morning.

Lines of structlog and of the standard library go through one handler to stderr, which may close or
clog at any time: lines are then lost and counted, and nothing else happens.
"""

import io
import logging
import os
import select
import sys
import time
from collections.abc import Callable
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from hotreload.core.progress import current_attempt
from hotreload.events import (
    AnswersWithheld,
    AttemptFinished,
    DryRunFinished,
    Event,
    FoldersPassedOver,
    GateChanged,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ModeChosen,
    OperatorAsked,
    PhaseEntered,
    Progress,
    ReplicaMoved,
    SettingsRead,
    SocketBoundAnew,
    SourceScanned,
    StateSaved,
    TroubleTold,
    Waiting,
)
from hotreload.observe.history import Fields, event_fields
from hotreload.observe.loading import NOT_LOADED
from hotreload.observe.passed_over import NewlyPassedOver
from hotreload.observe.progress import Pace
from hotreload.types import GateState, Outcome, Phase, ReplicaState

LIBRARIES = ("asyncio", "httpx", "huggingface_hub", "jax", "py.warnings", "sgl_jax", "uvicorn")
"""Loggers that get our handler themselves, because sglang-jax 0.0.2 replaces the root logger's."""

OUTCOME_LEVELS = {
    Outcome.LIVE: logging.INFO,
    Outcome.PASSED: logging.INFO,
    Outcome.REJECTED: logging.WARNING,
    Outcome.POSTPONED: logging.WARNING,
    Outcome.SUPERSEDED: logging.INFO,
    Outcome.LOST: logging.CRITICAL,
}
LEVELS: dict[type[Event], int] = {
    AnswersWithheld: logging.WARNING,
    GateChanged: logging.DEBUG,
    LiveDrifted: logging.ERROR,
    LiveVerified: logging.DEBUG,
    LoaderDistrusted: logging.ERROR,
    PhaseEntered: logging.DEBUG,
    SocketBoundAnew: logging.WARNING,
}
"""Of events whatever they say, unless they say something worse; of others it is info."""
SHOWN_FINDINGS = 10
DRAINS_UNASKED = (
    "nothing, if swaps may hold requests until those under way have ended: [reload] mode = "
    "'drain' says that it is meant; otherwise change what `why` names"
)
DISTRUSTED = (
    "nothing for those who are served: checkpoints go live as before, through upstream's loader, "
    "and take longer; report this line"
)
DRIFTED = (
    "restart the daemon, which loads the weights anew; then look for faults of the memory of the "
    "device and of this machine (dmesg)"
)
REPLICA_LOST = (
    "nothing at first: the others answer, and it is started again by itself; if it is lost again "
    "and again, look for what `reason` names"
)
NOT_READ = (
    "mend what `error` names and send SIGHUP again: until then the previous settings stay in force"
)
WANT_A_RESTART = "restart hotreload to go by what `waiting` names too; no request is lost by it"
REMOVED = (
    "find out who removes it, a cleaner of temporary files perhaps: until it was bound anew nobody "
    "could connect; who was connected noticed nothing"
)
PROGRESS_SECONDS = 10.0
"""How many seconds lie between two lines about one download, or one loading."""


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Send everything to `stream` (stderr), as JSON lines unless a person looks at a terminal.

    Writes our lines from `level` up, other libraries' from warning up. May be called again.
    """
    stream = sys.stderr if stream is None else stream
    is_terminal = _is_terminal(stream)
    as_json = format == "json" or (format == "auto" and not is_terminal)
    handler = LossyHandler(stream)
    handler.setFormatter(_formatter(as_json, is_terminal and not os.environ.get("NO_COLOR")))
    threshold = getattr(logging, level.upper())
    _attach(logging.getLogger(), handler, max(threshold, logging.WARNING))
    _attach(logging.getLogger("hotreload"), handler, threshold)
    for name in LIBRARIES:
        _attach(logging.getLogger(name), handler, max(threshold, logging.WARNING))
    # Only root's level for JAX: at its import it takes one of its own for XLA's lines, too.
    logging.getLogger("jax").setLevel(logging.NOTSET)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _attach(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _shared() -> list[Processor]:
    """The processors that our lines and those of other libraries both go through."""
    return [
        _add_attempt,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]


def _add_attempt(logger: object, level: str, line: EventDict) -> EventDict:
    """Say which attempt a line belongs to, also if a check, the staging or a library wrote it."""
    if (attempt := current_attempt()) is not None:
        line["attempt"] = attempt
    return line


def _formatter(as_json: bool, in_colour: bool) -> logging.Formatter:
    last: list[Processor]
    if as_json:
        last = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=plain)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class LossyHandler(logging.Handler):
    """Writes lines as long as somebody reads them; never raises and never waits for a reader."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self.lost = 0
        self._stream = stream
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it as lost."""
        try:
            self._write(self.format(record))
            if self.lost:
                self._write(self.format(_lines_lost(self.lost)))
                self.lost = 0
        except Exception:  # to complain on the same closed stderr would raise
            self.lost += 1

    def _write(self, line: str) -> None:
        if self._stream is None:
            raise OSError("there is no stderr")
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # in memory
            self._stream.write(line + "\n")
            return
        self._write_what_fits(descriptor, f"{line}\n".encode(errors="replace"))

    def _write_what_fits(self, descriptor: int, data: bytes) -> None:
        """Write in pieces a pipe takes whole; waiting for a reader would stop every request."""
        data = b"\n" + data if self._torn else data
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        for start in range(0, len(data), select.PIPE_BUF):
            if not poll.poll(0):
                self._torn = self._torn or start > 0
                raise BlockingIOError("nobody reads stderr")
            os.write(descriptor, data[start : start + select.PIPE_BUF])
        self._torn = False


def _lines_lost(count: int) -> logging.LogRecord:
    fields = {"name": "hotreload.log", "levelname": "WARNING", "levelno": logging.WARNING}
    return logging.makeLogRecord({**fields, "msg": "log.lines_lost", "lines": count})


class LogObserver:
    """Writes a line for each event; the line at the end of an attempt says all about it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.stdlib.get_logger("hotreload")
        self._waits: dict[str, str | None] = {}
        self._scan_error: str | None = None
        self._newly_passed_over = NewlyPassedOver()
        self._clock = clock
        self._pace = Pace(clock)
        self._progress_at = 0.0

    def observe(self, event: Event) -> None:
        """Write what happened."""
        begins = isinstance(event, Progress) and event.revision != self._pace.revision
        self._pace.observe(event)
        if isinstance(event, Progress) and not self._is_time_for_progress(begins):
            return
        if isinstance(event, FoldersPassedOver):
            for folder in self._newly_passed_over.of(event):
                self._log.warning("source.passed_over", **folder)
            return
        fields = event_fields(event)
        level = self._level(event)
        if isinstance(event, Progress):
            fields |= self._pace.fields() or {}
        if isinstance(event, AttemptFinished | DryRunFinished):
            fields = canonical_fields(event)
        fields |= _todo(event)
        self._log.log(level, fields.pop("event"), **fields)

    def _is_time_for_progress(self, begins: bool) -> bool:
        """Whether a line is due; none is at the beginning: a short download only tells its end."""
        now = self._clock()
        is_due = not begins and now - self._progress_at >= PROGRESS_SECONDS
        if begins or is_due:
            self._progress_at = now
        return is_due

    def _level(self, event: Event) -> int:
        match event:
            case ReplicaMoved(state=ReplicaState.LOST):
                return logging.ERROR
            case AttemptFinished(attempt) | DryRunFinished(attempt):
                return OUTCOME_LEVELS[attempt.outcome]
            case (
                GateChanged(GateState.SEALED)
                | StateSaved(str())
                | TroubleTold(message=str())
                | SettingsRead(error=str())
                | SettingsRead(waiting=(_, *_))
                | OperatorAsked(refusal=str())
                | ModeChosen(why=str())
            ):
                return logging.WARNING
            case SourceScanned(_, error):
                return self._scan_level(error)
            case Waiting(waiting_for, who):
                return self._waiting_level(who, waiting_for)
        return LEVELS.get(type(event), logging.INFO)

    def _scan_level(self, error: str | None) -> int:
        """A source that fails gets one line, and one when it is back: not one for each scan."""
        before, self._scan_error = self._scan_error, error
        if error == before:
            return logging.DEBUG
        return logging.WARNING if error else logging.INFO

    def _waiting_level(self, who: str, waiting_for: str | None) -> int:
        before, self._waits[who] = self._waits.get(who), waiting_for
        return logging.INFO if waiting_for and waiting_for != before else logging.DEBUG


def _todo(event: Event) -> Fields:
    """What somebody who reads of it can do about it."""
    match event:
        case ModeChosen(why=str()):
            words = DRAINS_UNASKED
        case ReplicaMoved(state=ReplicaState.LOST):
            words = REPLICA_LOST
        case LoaderDistrusted():
            words = DISTRUSTED
        case LiveDrifted():
            words = DRIFTED
        case SocketBoundAnew():
            words = REMOVED
        case SettingsRead(error=str()):
            words = NOT_READ
        case SettingsRead(waiting=(_, *_)):
            words = WANT_A_RESTART
        case _:
            return {}
    return {"todo": words}


def canonical_fields(event: AttemptFinished | DryRunFinished) -> Fields:
    """Return everything known about an attempt, flat, under the same names each time."""
    fields = event_fields(event)
    spent = fields.pop("phases")
    findings = fields.pop("findings")
    reason = event.attempt.reason
    return {
        **{name: fields[name] for name in ("event", "revision", "label", "outcome", "code")},
        "message": reason.message if reason else None,
        "findings": findings[:SHOWN_FINDINGS],
        "findings_total": len(findings),
        "generation": fields["generation"],
        "live": fields["live"],
        "replica": fields["replica"],
        "rolled_back": fields["rolled_back"],
        "by": fields["by"],
        "dry_run": fields["dry_run"],
        "unproven": fields["unproven"],
        "pause_s": fields["pause_seconds"],
        **{f"{phase.value}_s": spent.get(phase.value, 0.0) for phase in Phase},
        **{name: fields[name] for name in NOT_LOADED},
    }
