"""The event of a command."""

from dataclasses import dataclass

from hotreload.events import Event
from hotreload.types import Revision


@dataclass(frozen=True, slots=True)
class CommandBegan(Event):
    """The operator's command begins to judge these weights, within so many seconds."""

    revision: Revision
    command: str
    """The name of its program."""
    within: float

    name = "reload.command"
