"""Every kind of event there is, of the kernel and of features."""

from collections.abc import Iterator
from types import ModuleType

from hotreload import events
from hotreload.events import Event
from hotreload.features.pause import events as of_pauses


def _kinds_in(module: ModuleType) -> Iterator[type[Event]]:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event:
            yield kind


KINDS = {kind for module in (events, of_pauses) for kind in _kinds_in(module)}
