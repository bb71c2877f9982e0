"""Leaves a machine in order: nothing new begins, short answers end, long ones are cut in time."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.errors import DrainTimedOut, NotServing
from hotreload.events import Event
from hotreload.feature import Given
from hotreload.json_fields import Fields, iso
from hotreload.picture.report import Family, FeatureReport, gauge
from hotreload.picture.rows import row

log = logging.getLogger("hotreload.departure")

CUT_AGAIN_SECONDS = 1.0
"""Seconds to the next abort: one misses requests between the gate and the engine."""

Notices = Callable[[], AsyncGenerator[str | None]]
"""Yield why the machine will be taken away, or None, as often as one looks."""


@dataclass(frozen=True, slots=True)
class DepartureBegan(Event):
    """A notice came: no request is taken in, and nothing new is staged."""

    why: str
    within: float
    """Seconds that answers under way may take."""

    name = "departure.began"
    level = logging.WARNING


@dataclass(frozen=True, slots=True)
class DepartureOver(Event):
    """The notice was withdrawn: all goes on."""

    why: str

    name = "departure.over"


@dataclass(eq=False)
class Departure(Admission):
    """Refuses requests and puts off attempts as long as a notice stands."""

    given: Given
    notices: Mapping[str, Notices]
    within: float
    """Seconds that answers may take from the notice on."""
    _said: dict[str, str | None] = field(default_factory=dict)
    """The last word of each that gives notices."""
    _why: str | None = None
    _ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow all notices, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, notices in self.notices.items():
                    tasks.create_task(self._follow(name, notices), name=f"notices: {name}")
        finally:
            self._end_waiting()

    async def _follow(self, name: str, notices: Notices) -> None:
        async for why in notices():
            self._said[name] = why
            self._change(next(filter(None, self._said.values()), None))

    def _change(self, why: str | None) -> None:
        """Go by the notice that stands, if any; only its coming and its end change anything."""
        before = self._why
        if (before is None) == (why is None):
            return
        self._why = why
        self.given.attempts.put_off(f"this machine will be taken away: {why}" if why else None)
        if why is not None:
            self.given.attempts.publish(DepartureBegan(why, self.within))
            self._ending = asyncio.create_task(self._end_answers(), name="the last answers")
        elif before is not None:
            self._end_waiting()
            self.given.attempts.publish(DepartureOver(before))
        self.given.entrance.look_again()

    async def _end_answers(self) -> None:
        """Let answers end by themselves, and cut short what takes longer."""
        patience = self.within
        while True:
            try:
                return await self.given.entrance.wait_until_empty(patience)
            except DrainTimedOut as late:
                log.warning("departure.cut_short", extra={"cause": str(late)})
            for engine in self.given.engines():
                await engine.answers.abort()
            patience = CUT_AGAIN_SECONDS

    def _end_waiting(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = None

    def holds(self, asked: Conditions) -> bool:
        """Have no request in while a notice stands."""
        return self._why is not None

    @contextmanager
    def count_waiting(self, asked: Conditions) -> Iterator[None]:
        """Raise NotServing: another machine can answer it."""
        words = f"this machine will be taken away: {self._why}"
        raise NotServing(words, code="leaving", retry_after=1)
        yield  # a generator, as it must be


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
