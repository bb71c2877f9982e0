"""All that a worker process gets when it starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotreload.server.http.keys import ApiKeys
from hotreload.server_limits import Limits
from hotreload.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The start data of a worker; the daemon pickles it to the worker's input."""

    settings: Settings
    limits: Limits
    keys: Mapping[str, ApiKeys]
    """The valid keys, by the setting that names their file."""
    descriptors: tuple[int, int, int]
    """The worker's ends of the wire and of the handover, and the memory of shared counters."""
    index: int
    processes: int
    graces: tuple[float, float]
    """Seconds for answering its requests at a shutdown, and for waiting for another request on an
    open connection."""
