"""Reports the pause that stands, and how earlier ones ended."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypedDict

from hotreload.events import Event
from hotreload.features.pause.pause import PAUSE_LAPSED, PauseBegan, PauseOver
from hotreload.figures import duration
from hotreload.json_fields import ByFields, Fields, by_fields, iso
from hotreload.picture.report import Family, FeatureReport, counter, gauge
from hotreload.picture.rows import row
from hotreload.picture.words import count_of, who


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
