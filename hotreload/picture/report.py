"""One fact, told everywhere alike: in `/status` and its rows, in `/gate`, and by metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hotreload.events import Event
from hotreload.json_fields import Fields
from hotreload.types import Attempt, Revision


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its series, as a scrape finds them."""

    kind: Literal["gauge", "counter"]
    name: str
    words: str
    labels: tuple[str, ...] = ()
    series: Sequence[tuple[tuple[str, ...], float]] = ()
    """Each with a value for each label."""


@dataclass(frozen=True, slots=True)
class Objection:
    """The reason why what is live does not count as live for good."""

    word: str
    """The verdict of `/gate`."""
    why: str


class FeatureReport:
    """All that one feature tells; what it leaves out it does not tell.

    What a scrape or `/status` reads must be ready: it may come from any thread, and waits for
    nothing.
    """

    troubles: Sequence[str] = ()
    """The codes of its troubles; metrics export each from the start at 0."""

    def observe(self, event: Event) -> None:
        """Take in what happened."""

    def fields(self) -> Fields:
        """Return its fields of `/status`."""
        return {}

    def attempt_fields(self) -> Fields:
        """Return its fields of the attempt under way."""
        return {}

    def at_work(self, attempt: Fields) -> str | None:
        """Say what it does in the attempt under way, of the fields of that; None for nothing."""
        return None

    def holds(self, status: Fields) -> str | None:
        """Say how it holds the requests that come, of the fields of a status; None if it does not.

        Such as "holds 2 requests while somebody has it paused".
        """
        return None

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its rows, made of the fields of a status alone."""
        return ()

    def families(self) -> Iterable[Family]:
        """Return its metrics; each is there from the start."""
        return ()

    def objection_to(self, live: Revision) -> Objection | None:
        """Say what it has against what is live; None for nothing."""
        return None

    def gate_fields(self, last: Attempt | None) -> Fields:
        """Return its fields of `/gate`; `last` is the last attempt."""
        return {}
