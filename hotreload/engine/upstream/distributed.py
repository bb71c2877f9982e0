"""Hooks for an engine that several processes hold together.

The processes meet and agree elsewhere; the code that starts the engine hands the hooks in.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class TurnsInStep(Protocol):
    """Has a scheduler take each of its turns as the schedulers of all other processes do."""

    @property
    def has_orders(self) -> bool:
        """True while orders for the other processes are left: then the loop must turn."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """Hooks by which this process takes part in an engine of several."""

    arguments: Mapping[str, Any]
    """Arguments of upstream's Engine: the number of ranks, this rank, and where ranks meet."""
    guard_sockets: Callable[[], AbstractContextManager[None]]
    """A context in which a scheduler is made that accepts messages of the engine's ranks alone."""
    keep_in_step: Callable[[Any, Callable[[], None]], TurnsInStep]
    """Keeps a scheduler's turns in step with the others'. The second argument raises an exception
    when the scheduler's loop is to end."""
