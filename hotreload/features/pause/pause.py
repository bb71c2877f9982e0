"""A pause that a caller asked for: new requests wait until it is ended or its time is over.

hotreload needs none: new weights go live beside those that answer. Trainers that were written for
other servers ask for one all the same, and some die before they end it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from logging import INFO, WARNING
from typing import TypedDict

from hotreload.attempts import By
from hotreload.core.rules import USUAL_RULES
from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.errors import BadRequest, NotServing
from hotreload.events import Event, Publish
from hotreload.figures import duration
from hotreload.json_fields import ByFields, Fields, by_fields, iso
from hotreload.picture.report import Family, FeatureReport, counter, gauge
from hotreload.picture.rows import row
from hotreload.picture.words import count_of, who
from hotreload.troubles import Trouble

PAUSE_LAPSED = "pause_lapsed"
"""The trouble of a pause that ran out of time: its caller did not end it."""
FORBIDDEN = (
    "[pause] limit = 0 forbids pauses; leave the pause out: new weights go live beside "
    "those that answer, and no answer is made by two of them"
)
LOOK_FOR_THE_CALLER = (
    "find out what became of the caller; the next pause, or POST /continue_generation, ends this"
)


@dataclass(frozen=True, slots=True)
class PauseBegan(Event):
    """A caller paused: new requests wait."""

    by: By
    mode: str
    """The caller's word for it."""
    running: str
    """The end of the requests that run: `finish` or `abort`."""
    limit: float
    """Seconds after which it ends by itself."""

    name = "pause.began"


@dataclass(frozen=True, slots=True)
class PauseOver(Event):
    """The waiting requests go on; `by` is None if the pause's time was over."""

    by: By | None
    held: int
    """Count of the requests that waited."""

    name = "pause.over"

    @property
    def level(self) -> int:
        return WARNING if self.by is None else INFO

    def fields(self) -> Fields:
        fields: Fields = {"held": self.held, "ended": "limit" if self.by is None else "asked"}
        return {**fields, **by_fields(self.by)} if self.by else fields


class RunningRequests(StrEnum):
    """The end of the requests that run when a pause begins."""

    FINISH = "finish"
    """They end by themselves, under the weights they began with."""
    ABORT = "abort"


@dataclass(eq=False)
class Pause(Admission):
    """Holds new requests while it stands; at most one stands at a time."""

    publish: Publish
    look_again: Callable[[], None]
    """Called when one begins or is over."""
    limit: float = 0.0
    """Seconds after which it ends by itself; 0 lets none begin."""
    max_held: int = USUAL_RULES.max_held
    hold_arrivals: bool = True
    held: int = 0
    """Count of requests that wait for its end; for any thread."""
    _by: By | None = None
    _end: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        """Begin without a pause that lapsed."""
        self._lapsed = Trouble(PAUSE_LAPSED, self.publish)

    @property
    def stands(self) -> bool:
        """True while new requests wait."""
        return self._by is not None

    def holds(self, asked: Conditions) -> bool:
        """Have every request wait that comes while it stands."""
        return self._by is not None

    def begin(self, by: By, mode: str, running: RunningRequests) -> None:
        """Hold new requests from now on; the time of a pause that stands begins anew.

        `mode` is what the caller called it. BadRequest where pauses are forbidden.
        """
        if not self.limit:
            raise BadRequest(FORBIDDEN, code="pause_forbidden")
        self._forget_end()
        self._lapsed.set(None)
        self._by = by
        self._end = asyncio.get_running_loop().call_later(self.limit, self._lapse, by)
        self.publish(PauseBegan(by, mode, running.value, self.limit))
        self.look_again()

    def end(self, by: By) -> bool:
        """Let in the waiting requests, and new ones; False if no pause stood."""
        self._lapsed.set(None)
        stood = self.stands
        if stood:
            self._over(by)
        return stood

    def _lapse(self, by: By) -> None:
        """End the pause without its caller, which may have died."""
        caller = by.address or f"user {by.uid} (pid {by.pid})"
        if by.route:
            caller += f" through {by.route}"
        words = (
            f"{caller} paused at {iso(by.at)} and did not end it within {duration(self.limit)} "
            "([pause] limit), so the pause ended by itself"
        )
        self._lapsed.set(words, LOOK_FOR_THE_CALLER)
        self._over(None)

    def _over(self, by: By | None) -> None:
        self._forget_end()
        self._by = None
        self.publish(PauseOver(by, self.held))
        self.look_again()

    def _forget_end(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = None

    @contextmanager
    def count_waiting(self, asked: Conditions) -> Iterator[None]:
        """Count one more that waits; NotServing when too many do, or none may."""
        if not self.hold_arrivals:
            raise NotServing("a pause was asked for", code="paused", retry_after=1)
        if self.held >= self.max_held:
            raise NotServing(
                f"{self.held} requests already wait for the end of a pause ([reload] max_held)",
                code="too_many_held",
                retry_after=1,
            )
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1


# --- what is reported of it -----------------------------------------------------------------------


class PauseFields(TypedDict):
    """A pause: its caller, its times, and the requests that wait for its end."""

    since: str
    until: str
    limit: float
    mode: str
    running: str
    held: int
    by: ByFields


class PauseReport(FeatureReport):
    """Reports pauses."""

    troubles = (PAUSE_LAPSED,)

    def __init__(self, held: Callable[[], int], wall: Callable[[], float] = time.time) -> None:
        """`held` counts the requests that wait for its end."""
        self._held, self._wall = held, wall
        self._began: PauseBegan | None = None
        self._renewed = 0.0
        self._since = 0.0
        """Wall-clock seconds since when it stands; 0 where none does."""
        self._ended: Mapping[str, int] = {"asked": 0, "limit": 0}
        """Count of ended pauses, by what ended each."""

    def observe(self, event: Event) -> None:
        """Take in that one begins, begins anew, or is over."""
        match event:
            case PauseBegan():
                self._began, self._renewed = event, self._wall()
                self._since = self._since or self._renewed
            case PauseOver(by):
                self._began, self._since = None, 0.0
                how = "limit" if by is None else "asked"
                self._ended = {**self._ended, how: self._ended[how] + 1}

    def fields(self) -> Fields:
        """Return the pause that stands; None where none does."""
        if (began := self._began) is None:
            return {"pause": None}
        pause: PauseFields = {
            "since": iso(self._since),
            "until": iso(self._renewed + began.limit),
            "limit": began.limit,
            "mode": began.mode,
            "running": began.running,
            "held": self._held(),
            "by": by_fields(began.by),
        }
        return {"pause": pause}

    def holds(self, status: Fields) -> str | None:
        """Say how many requests wait for its end."""
        pause = status.get("pause")
        held = pause and count_of(pause["held"], "request")
        return f"holds {held} during a pause" if held else None

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its row."""
        pause = status.get("pause")
        return [row("paused", "\n".join(_words(pause)), "wait")] if pause else []

    def families(self) -> Iterator[Family]:
        """Return since when it stands, how many wait, and how many pauses ended."""
        words = "Since when a pause stands; 0 without one."
        yield gauge("paused_since_timestamp_seconds", words, self._since)
        yield gauge("requests_paused", "Requests that wait for the end of a pause.", self._held())
        words = "Pauses that ended: asked for by a request, or by [pause] limit."
        yield counter("pauses", words, self._ended, "ended")


def _words(pause: Fields) -> Iterator[str]:
    """Name the caller, the number of waiting requests, and when the pause ends by itself."""
    yield f"by {who(pause['by'])}: {count_of(pause['held'], 'request')} held"
    yield f"since {pause['since']}, for {duration(pause['limit'])} at most"
