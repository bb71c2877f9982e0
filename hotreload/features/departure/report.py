"""Reports the notice that stands."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

from hotreload.events import Event
from hotreload.features.departure.events import DepartureBegan, DepartureOver
from hotreload.json_fields import Fields, iso
from hotreload.picture.report import Family, FeatureReport, gauge
from hotreload.picture.rows import row


class DepartureFields(TypedDict):
    """A notice: its words, since when it stands, and when the last answers are cut short."""

    why: str
    since: str
    until: str


class DepartureReport(FeatureReport):
    """Reports notices."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._began: tuple[DepartureBegan, float] | None = None

    def observe(self, event: Event) -> None:
        """Take in that a notice came, or was withdrawn."""
        match event:
            case DepartureBegan():
                self._began = (event, self._wall())
            case DepartureOver():
                self._began = None

    def why_not_ready(self) -> str | None:
        """Say why another machine should get the requests."""
        return f"leaving: {self._began[0].why}" if self._began else None

    def fields(self) -> Fields:
        """Return the notice that stands; None where none does."""
        if self._began is None:
            return {"departure": None}
        notice, since = self._began
        departure: DepartureFields = {
            "why": notice.why,
            "since": iso(since),
            "until": iso(since + notice.within),
        }
        return {"departure": departure}

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its row."""
        notice = status.get("departure")
        words = notice and f"{notice['why']}\nanswers end until {notice['until']}"
        return [row("departure", words, "wait")] if words else []

    def families(self) -> Iterator[Family]:
        """Return since when a notice stands."""
        words = "Since when a notice stands that this machine will be taken away; 0 without one."
        yield gauge(
            "departure_since_timestamp_seconds", words, self._began[1] if self._began else 0
        )
