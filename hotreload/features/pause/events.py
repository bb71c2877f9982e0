"""The events of a pause, and its trouble."""

from dataclasses import dataclass
from logging import INFO, WARNING

from hotreload.events import Event
from hotreload.json_fields import Fields, by_fields
from hotreload.types import By

PAUSE_LAPSED = "pause_lapsed"
"""The trouble of a pause that ran out of time: its caller did not end it."""


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
