"""The events of a machine that will be taken away."""

from dataclasses import dataclass
from logging import WARNING

from hotreload.events import Event


@dataclass(frozen=True, slots=True)
class DepartureBegan(Event):
    """A notice came: no request is taken in, and nothing new is staged."""

    why: str
    within: float
    """Seconds that answers under way may take."""

    name = "departure.began"
    level = WARNING


@dataclass(frozen=True, slots=True)
class DepartureOver(Event):
    """The notice was withdrawn: all goes on."""

    why: str

    name = "departure.over"
