"""A pause that a caller asked for: new requests wait until it is ended or its time is over.

hotreload needs none: new weights go live beside those that answer. Trainers that were written for
other servers ask for one all the same, and some die before they end it.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from logging import INFO, WARNING

from hotreload.core.rules import USUAL_RULES
from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.errors import BadRequest, NotServing
from hotreload.events import Event, Publish
from hotreload.figures import duration
from hotreload.json_fields import Fields, by_fields, iso
from hotreload.troubles import Trouble
from hotreload.types import By

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
