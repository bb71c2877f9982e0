"""Every kind of event there is, of the kernel and of features."""

from collections.abc import Iterator
from types import ModuleType

from hotreload import events
from hotreload.events import AttemptEnd, Event
from hotreload.events.event import LateEvidence
from hotreload.features.bake import evidence as of_bakes
from hotreload.features.command import command as of_commands
from hotreload.features.departure import departure as of_departures
from hotreload.features.pause import pause as of_pauses

BASES = (Event, LateEvidence, AttemptEnd)


def _kinds_in(module: ModuleType) -> Iterator[type[Event]]:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, Event) and kind not in BASES:
            yield kind


KINDS = {
    kind
    for module in (events, of_bakes, of_commands, of_departures, of_pauses)
    for kind in _kinds_in(module)
}
