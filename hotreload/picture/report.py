"""Metrics as a scrape finds them, and all facts that one feature reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotreload.attempts import Attempt
from hotreload.events import Event
from hotreload.json_fields import Fields
from hotreload.types import Revision


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its series, as a scrape finds them."""

    kind: Literal["gauge", "counter"]
    name: str
    words: str
    labels: tuple[str, ...] = ()
    series: Sequence[tuple[tuple[str, ...], float]] = ()
    """Each with a value for each label."""


LONGEST_MESSAGE = 200
"""Characters of a message in a label; the history has all of it."""
Numbers = float | Mapping[Any, float]
"""One number, or a number for each value of the labels: a text, or one text for each label."""


def gauge(name: str, words: str, numbers: Numbers, *labels: str) -> Family:
    """Make a metric whose numbers go up and down."""
    return Family("gauge", f"hotreload_{name}", words, labels, _series(numbers))


def counter(name: str, words: str, numbers: Numbers, *labels: str) -> Family:
    """Make a metric whose numbers only grow."""
    return Family("counter", f"hotreload_{name}", words, labels, _series(numbers))


def _series(numbers: Numbers) -> Sequence[tuple[tuple[str, ...], float]]:
    if not isinstance(numbers, Mapping):
        return [((), numbers)]
    return [(key if isinstance(key, tuple) else (key,), each) for key, each in numbers.items()]


def shorten(message: str) -> str:
    """Return the beginning of a message, in one line of text whatever it names, for a label."""
    line = " ".join(message.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"


@dataclass(frozen=True, slots=True)
class WishVerdict:
    """The verdict of `/gate` on the wanted revision, in one word, and the reason."""

    word: str
    """`pass`, or the obstacle: `not_serving`, `waiting`, an attempt's end, a feature's word.

    With a named revision also `replaced`: another one went live after it.
    """
    why: str


class FeatureReport:
    """All facts of one feature; each method is optional.

    A scrape or `/status` reads them from any thread: they must be ready, and wait for nothing.
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
        """Return how the feature holds requests, from the fields of a status; None if it does not.

        For example "holds 2 requests during a pause".
        """
        return None

    def rows(self, status: Fields) -> Iterable[Fields]:
        """Return its rows, made of the fields of a status alone."""
        return ()

    def families(self) -> Iterable[Family]:
        """Return its metrics; each is there from the start."""
        return ()

    def why_not_ready(self) -> str | None:
        """Say why another host should get all requests; None where this one may."""
        return None

    def page_for_gateways(self) -> str:
        """Return its part of the page that gateways read many times a second."""
        return ""

    def objection_to(self, live: Revision) -> WishVerdict | None:
        """Return the feature's objection to the live generation; None without."""
        return None

    def gate_fields(self, last: Attempt | None) -> Fields:
        """Return its fields of `/gate`; `last` is the last attempt."""
        return {}
