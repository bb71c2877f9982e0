"""All that a worker has to know when it begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import Limits
from hotreload.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """All that a worker has to know; the daemon writes it to the worker's input, as a pickle."""

    settings: Settings
    limits: Limits
    keys: Mapping[str, ApiKeys]
    """The keys that count, by the setting that names their file."""
    descriptors: tuple[int, int, int]
    """Its end of the wire, of the way of connections, and the memory of shared numbers."""
    index: int
    processes: int
    graces: tuple[float, float]
    """The seconds in which it answers who came, once it is to go, and how long it waits for more
    from who is connected."""
