"""One generation's share of an engine: what its turns leave for its next turn, and its weights."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Bound:
    """Weights, pool and programs that the forward thread computes a lane's batches with."""

    leaves: list[Any]
    """The engine's whole list of leaves, never changed in place."""
    kv_pool: Any
    memory_pools: Any = None
    """The newer engine's holder of all pools; 0.0.2 has none."""
    dispatcher: Any = None
    """The newer engine's ahead-of-time programs for these leaves, where it is told to use them."""


class Lane:
    """While it has its turn, the scheduler holds its state; else it lies here."""

    def __init__(self, scheduler: Any, number: int, bound: Bound, *, has_own_pool: bool) -> None:
        self.number = number
        self.bound = bound
        self.has_own_pool = has_own_pool
        """True where nothing it computes reaches the KV pool in which clients are served."""
        self.ended: Future[None] | None = None
        """Set once nobody is admitted to it any more; its result comes when it has ended."""
        self._scheduler = scheduler
        self._state: dict[str, Any] | None = None

    @property
    def is_ending(self) -> bool:
        """True when it is given up as soon as nothing of it is left."""
        return self.ended is not None

    def look(self, name: str) -> Any:
        """One field of its state, wherever that lies now."""
        state = self._state
        return getattr(self._scheduler, name) if state is None else state[name]

    def leave_with(self, state: dict[str, Any]) -> None:
        """Lay down the state for the next turn."""
        self._state = state

    def leave(self, fields: Sequence[str]) -> None:
        """Take the state out of the scheduler: another lane has the next turn."""
        self._state = {name: getattr(self._scheduler, name) for name in fields}

    def enter(self) -> None:
        """Put the state into the scheduler: what it does from now on, it does for this lane."""
        state, self._state = self._state, None
        assert state is not None, "the lane has its turn already"
        for name, value in state.items():
            setattr(self._scheduler, name, value)
