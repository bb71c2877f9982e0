"""An event and its name, level and fields; and the way events reach their observers."""

import dataclasses
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

from hotreload.attempts import By, Evidence
from hotreload.json_fields import Fields, by_fields, generation_fields, revision_fields
from hotreload.types import Generation, Revision


class Event:
    """Something that happened: a frozen dataclass that gives its own log line and fields."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The dotted name to search for."""
        raise NotImplementedError

    @property
    def level(self) -> int:
        """The level of its line in the log."""
        return logging.INFO

    @property
    def todo(self) -> str:
        """Advice for the reader of the log; empty where there is none."""
        return ""

    def fields(self) -> Fields:
        """Return the event's facts as JSON fields."""
        told: Fields = {}
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # each kind is a dataclass
            told |= _spell(each.name, getattr(self, each.name))
        return told


class LateEvidence(Event):
    """Evidence on weights that came after the end of the attempt that made them live."""

    __slots__ = ()
    generation: int

    @property
    def evidence(self) -> Evidence:
        """The evidence, which replaces that judge's earlier findings."""
        raise NotImplementedError


def _spell(name: str, value: Any) -> Fields:
    match value:
        case Revision():
            return {**revision_fields(value)}
        case Generation():
            return {**generation_fields(value)}
        case By():
            return {**by_fields(value)}
        case Enum():
            return {name: value.value}
        case tuple():
            return {name: list(value)}
        case _:
            return {name: value}


def event_fields(event: Event) -> Fields:
    """Return an event as JSON fields, its dotted name under `event`: the public log schema."""
    return {"event": event.name, **event.fields()}


Observer = Callable[[Event], None]
Publish = Callable[[Event], None]


class Events:
    """Hands every event to every observer, in order, on the caller's thread."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; return a function that removes it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def publish(self, event: Event) -> None:
        """Call every observer; an observer's fault never reaches the caller."""
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception:
                logging.getLogger("hotreload.events").exception("events.observer_failed")
