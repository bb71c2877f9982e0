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
        """True while the others are still to be told something, so that the loop must turn."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """Hooks by which this process takes part in an engine of several."""

    arguments: Mapping[str, Any]
    """Arguments of upstream's Engine: how many they are, which one this is, where they meet."""
    guard_sockets: Callable[[], AbstractContextManager[None]]
    """A scheduler that is made within trusts no other process than these."""
    keep_in_step: Callable[[Any, Callable[[], None]], TurnsInStep]
    """Has a scheduler take its turns as the others do. The second argument raises an exception when
    its loop is to end."""
