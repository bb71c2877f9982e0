"""The door for features that have a say in when a request is let in, and in which weights answer.

The entrance asks each of them, in their order, each time it looks for the engine that answers.
"""

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.core.way_in.gate import Gate
from hotreload.types import Lease


@dataclass(frozen=True, slots=True)
class Conditions:
    """The wishes of a request about the weights that are to answer it."""

    at_least: int = 0
    """The number of the oldest generation that may."""
    within: float = 0.0
    """Seconds for which it waits for a generation that is new enough."""
    exactly: ExactWeights | None = None
    """The weights that it names; None where any will do."""
    session: Hashable | None = None
    """The conversation that it belongs to; None where it names none."""


UNCONDITIONAL = Conditions()
"""Any weights that are live may answer at once."""


class Admission:
    """Has a say in each request that comes; what it leaves out it leaves as it is."""

    def holds(self, asked: Conditions) -> bool:
        """Return True while the request has to wait; `Entrance.look_again` when that changes."""
        return False

    def count_waiting(self, asked: Conditions) -> AbstractContextManager[None]:
        """Count the request while it waits for this; NotServing if it may not wait."""
        return nullcontext()

    def weights_for(self, asked: Conditions) -> Sequence[ExactWeights]:
        """Return the weights that are to answer it; none where any will do."""
        return ()

    def engine_for(self, asked: Conditions) -> int | None:
        """Return the index of the engine that is to answer it if that can; None for any."""
        return None

    def track(
        self, asked: Conditions, gate: Gate[Any], lease: Lease[Any]
    ) -> AbstractContextManager[None] | None:
        """Be with the request from when it is let in until it leaves; None where that is nothing.

        `Gate.keep` keeps the weights of the lease for longer than that.
        """
        return None

    def engine_lost(self, gate: Gate[Any]) -> None:
        """Keep nothing at the gate of an engine that was lost: a new gate takes its place."""
