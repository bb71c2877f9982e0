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
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from socket import AF_UNIX, socket
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from hotreload import events
from hotreload.core.progress import current_attempt
from hotreload.figures import duration
from hotreload.json_fields import NOT_LOADED, Fields, folder_fields
from hotreload.picture.under_way import Pace
from hotreload.types import Phase

LIBRARIES = ("asyncio", "httpx", "huggingface_hub", "jax", "py.warnings", "sgl_jax", "uvicorn")
"""Loggers that get our handler themselves, because sglang-jax 0.0.2 replaces the root logger's."""

SHOWN_FINDINGS = 10
SHOWN_OF_ATTEMPT = (
    *("event", "level", "timestamp", "logger", "todo"),
    *("label", "generation", "code", "message"),
)
"""Fields of a terminal's line on an ended attempt, beside its caller and its time."""
LONGEST_IN_TERMINAL = 80
PROGRESS_LINE_SECONDS = 10.0
"""Seconds between two lines about one download, or one loading."""
MOST_REMEMBERED = 1000
"""The most folders passed over that are remembered as logged."""


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Send everything to `stream` (stderr), as JSON lines unless a person looks at a terminal.

    Writes our lines from `level` up, other libraries' from warning up. May be called again.
    """
    stream = sys.stderr if stream is None else stream
    as_json = format == "json" or (format == "auto" and not _is_terminal(stream))
    handler = LossyHandler(stream)
    handler.setFormatter(_formatter(as_json, is_read_in_terminal(format, stream)))
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
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def is_read_in_terminal(format: str, stream: TextIO | None = None) -> bool:
    """Return True if a person reads the log of this format in a terminal."""
    return format != "json" and _is_terminal(sys.stderr if stream is None else stream)


def _attach(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _shared_processors() -> list[Processor]:
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


def _short(logger: object, level: str, line: EventDict) -> EventDict:
    """Take out of the end of an attempt what a person looks up in the history, not on a terminal.

    Words that are long, such as what the source waits for with its folders, end in an ellipsis.
    """
    if "outcome" in line and "fetching_s" in line:
        took = sum(line[f"{phase}_s"] for phase in Phase)
        shown = {name: line[name] for name in SHOWN_OF_ATTEMPT if line.get(name) is not None}
        asked = {"by": line["by"]["verb"]} if line["by"] else {}
        return {**shown, **asked, "took": duration(took)}
    waiting_for = line.get("waiting_for")
    if waiting_for and len(waiting_for) > LONGEST_IN_TERMINAL:
        line["waiting_for"] = f"{waiting_for[:LONGEST_IN_TERMINAL]}…"
    return line


def _formatter(as_json: bool, in_terminal: bool) -> logging.Formatter:
    last: list[Processor]
    if as_json:
        last = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        in_colour = in_terminal and not os.environ.get("NO_COLOR")
        last = [
            *([_short] if in_terminal else []),
            structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=plain),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared_processors(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class LossyHandler(logging.Handler):
    """Writes lines as long as they are read; never raises and never waits for a reader."""

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
                raise BlockingIOError("stderr is not read")
            os.write(descriptor, data[start : start + select.PIPE_BUF])
        self._torn = False


def _lines_lost(count: int) -> logging.LogRecord:
    fields = {"name": "hotreload.log", "levelname": "WARNING", "levelno": logging.WARNING}
    return logging.makeLogRecord({**fields, "msg": "log.lines_lost", "lines": count})


class NewlyPassedOver:
    """Picks folders not logged yet: each is logged once per reason, however often it is seen."""

    def __init__(self) -> None:
        self._told = OrderedDict[tuple[str, str], None]()

    def of(self, event: events.FoldersPassedOver) -> Iterator[Fields]:
        """Yield the fields of a log line for each folder that is new."""
        for folder in event.folders:
            key = (folder.label, folder.reason.code)
            if key not in self._told:
                yield {**folder_fields(folder)}
            self._told[key] = None
            self._told.move_to_end(key)
            if len(self._told) > MOST_REMEMBERED:
                self._told.popitem(last=False)


class LogObserver:
    """Writes a line for each event; the line at the end of an attempt says all about it."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.stdlib.get_logger("hotreload")
        self._newly_passed_over = NewlyPassedOver()
        self._said: dict[str, str | None] = {}
        """The last words of events that come again and again, by their name."""
        self._pace = pace
        self._clock = clock
        self._progress_at = 0.0

    def observe(self, event: events.Event) -> None:
        """Write what happened; the picture has it already."""
        if isinstance(event, events.Progress) and not self._is_time_for(event):
            return
        for name, fields in self._lines(event):
            todo = {"todo": event.todo} if event.todo else {}
            self._log.log(self._level(event), name, **fields | todo)

    def _lines(self, event: events.Event) -> Iterator[tuple[str, Fields]]:
        """Name and fields of each line that there is to write of it."""
        match event:
            case events.FoldersPassedOver():
                yield from ((event.name, folder) for folder in self._newly_passed_over.of(event))
            case events.AttemptEnd():
                yield event.name, canonical_fields(event)
            case events.Progress():
                yield event.name, event.fields() | (self._pace.fields() or {})
            case _:
                yield event.name, event.fields()

    def _is_time_for(self, progress: events.Progress) -> bool:
        """Return True if a line is due; none is at first: a short download logs its end alone."""
        now = self._clock()
        last = max(self._progress_at, self._pace.began)
        is_due = self._pace.last == progress and now - last >= PROGRESS_LINE_SECONDS
        if is_due:
            self._progress_at = now
        return is_due

    def _level(self, event: events.Event) -> int:
        """A source that fails gets one line, and one when it is back: not one for each look."""
        if not isinstance(event, events.SourceScanned | events.Wait):
            return event.level
        words = event.error if isinstance(event, events.SourceScanned) else event.waiting_for
        before, self._said[event.name] = self._said.get(event.name), words
        return logging.DEBUG if words == before else event.level


def canonical_fields(event: events.AttemptEnd) -> Fields:
    """Return everything known about an attempt, flat, under the same names each time."""
    fields = event.fields()
    spent = fields.pop("phases")
    findings = fields.pop("findings")
    reason = event.attempt.reason
    return {
        **{name: fields[name] for name in ("revision", "label", "outcome", "code")},
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


# --- a person at the terminal -------------------------------------------------------------------


class ReadyLine:
    """One line in plain words, once, as soon as the first weights answer."""

    def __init__(
        self, sockets: Sequence[socket], metrics: str | None, *, tls: bool, follows: bool
    ) -> None:
        """`metrics` is their address, if they have one; a rank that follows has no attempts."""
        pages_first = sorted(sockets, key=lambda each: each.family == AF_UNIX)
        places = [_place(each, "https" if tls else "http") for each in pages_first]
        if metrics:
            places.append(f"metrics http://{metrics}/metrics")
        self._places = ", ".join(places)
        self._follows = follows
        self._terminal = LossyHandler(sys.stderr)
        self._is_said = False

    def observe(self, event: events.Event) -> None:
        """Print once the first weights answer, which is an attempt's last event."""
        match event:
            case events.AttemptFinished(_, live) if live is not None:
                self._say_once()
            case events.GenerationLive() if self._follows:
                self._say_once()

    def _say_once(self) -> None:
        if not self._is_said:
            self._is_said = True
            self._terminal.emit(logging.makeLogRecord({"msg": f"\nready: {self._places}\n"}))


def _place(listener: socket, scheme: str) -> str:
    """Say where a socket is reached; a port has the status page."""
    name = listener.getsockname()
    if listener.family == AF_UNIX:
        return f"socket {name}"
    return f"{scheme}://{_at(*name[:2])}/ (page)"


def _at(host: str, port: int) -> str:
    """Write an address for a browser of this machine, also where all of them are listened on."""
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
