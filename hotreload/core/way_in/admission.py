"""The interface of features that decide when a request is admitted, and which weights answer it.

The entrance asks each feature, in their order, each time it looks for an engine.
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
    """A request's conditions on the weights that answer it."""

    at_least: int = 0
    """The number of the oldest generation that may answer."""
    within: float = 0.0
    """Seconds to wait for a generation that is new enough."""
    exactly: ExactWeights | None = None
    """The weights that the request names; None where any will do."""
    session: Hashable | None = None
    """The request's conversation; None where it names none."""


UNCONDITIONAL = Conditions()
"""Any weights that are live may answer at once."""


class Admission:
    """Takes part in the admission of each request; each method is optional."""

    def holds(self, asked: Conditions) -> bool:
        """Return True while the request must wait; call `Entrance.look_again` when that changes."""
        return False

    def count_waiting(self, asked: Conditions) -> AbstractContextManager[None]:
        """Count the request while it waits for this feature; NotServing if it may not wait."""
        return nullcontext()

    def weights_for(self, asked: Conditions) -> Sequence[ExactWeights]:
        """Return the weights that must answer the request; none where any will do."""
        return ()

    def engine_for(self, asked: Conditions) -> int | None:
        """Return the index of the preferred engine, used if it can answer; None for any."""
        return None

    def track(
        self, asked: Conditions, gate: Gate[Any], lease: Lease[Any]
    ) -> AbstractContextManager[None] | None:
        """Track the request from its admission to its end; None if there is nothing to do.

        `Gate.keep` keeps the lease's weights for longer than that.
        """
        return None

    def engine_lost(self, gate: Gate[Any]) -> None:
        """Drop all claims at the gate of a lost engine: a new gate takes its place."""
