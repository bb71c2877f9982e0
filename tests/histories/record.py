"""What was published, asked, answered and done to a daemon, as plain data that check.py judges.

Times are monotonic seconds of this machine, so those of several threads can be compared.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hotreload.types import Mode

Fields = dict[str, Any]
Identity = tuple[str, str]
"""A revision and the fingerprint of its weights: what a generation number stands for."""
OUTCOMES = ("live", "rejected", "postponed", "superseded", "lost")
"""How attempts end."""

START = "start"
ATTEMPT_NAMES = ("revision", "label", "outcome", "code", "generation", "rolled_back")


def attempt_of(fields: Fields) -> list[Any]:
    """What is compared of an attempt, and by which verb it came."""
    return [*(fields[name] for name in ATTEMPT_NAMES), (fields["by"] or {}).get("verb")]


class Ended(StrEnum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    REFUSED = "refused"
    CLOSED = "closed"
    UNREACHABLE = "unreachable"
    LEFT = "left"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Publication:
    """A checkpoint as it was meant to lie there, and what it says."""

    at: float
    label: str
    revision: str
    says: str
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """An answer and who made it; not whole when the connection broke in mid-stream."""

    generation: int
    revision: str
    fingerprint: str
    text: str
    whole: bool = True
    times: int = 1
    """How often in a row it was to be said: so a client gets an answer that takes long."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request from its first byte to its end."""

    start: float
    end: float
    route: str
    ended: Ended
    status: int | None = None
    asked: Fields = field(default_factory=dict)
    said: tuple[Said, ...] = ()
    fields: Fields = field(default_factory=dict)
    """The answer of a route that looks or changes, or the problem that stands for it."""
    is_bad: bool = False
    """Whether it was meant to be refused, or to be left by its client."""
    session: str = ""
    """The conversation it belongs to, if it named one."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One event of /events, when we heard of it."""

    life: int
    at: float
    fields: Fields


@dataclass(slots=True)
class Life:
    """One process of the daemon, from its start to its end."""

    number: int
    started: float
    failpoints: str = ""
    mode: Mode = Mode.OVERLAP
    """How new weights take over in it."""
    told: str | None = None
    """How we ended it: "kill", "stop", or None when a failpoint or a fault did."""
    told_at: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    left: list[tuple[int, str, str]] = field(default_factory=list)
    """The generations its state file knew afterwards: number, revision, fingerprint."""

    @property
    def was_killed(self) -> bool:
        """Whether it ended by a kill, ours or a failpoint's."""
        return self.exit_code == -9

    def holds(self, moment: float) -> bool:
        """Whether the process was there then."""
        return self.started <= moment and (self.ended is None or moment <= self.ended)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the daemon, and what came of it."""

    name: str
    at: float
    end: float
    came_of: str
    revisions: tuple[str, ...] = ()
    """What it published: their outcomes tell what came of it, too."""


@dataclass(slots=True)
class Record:
    """All of one run. Lists only grow, each by whole items: threads may add to them."""

    seed: int = 0
    publications: list[Publication] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """Labels of folders whose files were changed after they were published."""

    def events(self, life: Life) -> list[Fields]:
        """What was heard of one life, in order."""
        return [heard.fields for heard in self.heard if heard.life == life.number]

    def looks(self, route: str) -> list[Request]:
        """Answers of a route that tells how things are."""
        answered = (each for each in self.requests if each.ended is Ended.ANSWERED)
        return [each for each in answered if each.route == route]

    def looks_by_life(self, route: str) -> Iterator[tuple["Life", Request]]:
        """Those answers with the life that gave them."""
        for look in self.looks(route):
            life = self.life_of(look)
            if life is not None:
                yield life, look

    def life_of(self, request: Request) -> Life | None:
        """The life that can have answered it: the first that was there while it ran."""
        there = (
            life
            for life in self.lives
            if life.started <= request.end and (life.ended is None or request.start <= life.ended)
        )
        return next(there, None)

    def save(self, path: Path) -> Path:
        """Write it as JSON lines, each with the name of the list it belongs to."""
        with path.open("w") as file:
            for kind, item in self._items():
                file.write(json.dumps({"kind": kind, **asdict(item)}) + "\n")
        return path

    def _items(self) -> Iterator[tuple[str, Any]]:
        for kind in ("publications", "lives", "faults", "heard", "requests"):
            yield from ((kind, item) for item in getattr(self, kind))
