"""The interfaces of features on the way in: they take part in admissions, and listen to answers.

An `Admission` decides when a request is admitted, and which weights answer it: the entrance asks
each, in their order, each time it looks for an engine. A `Listener` listens to each request, from
its admission to its last token.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from hotreload.core.way_in.gate import ExactWeights, Gate
from hotreload.types import Generation, Lease


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


@dataclass(frozen=True, slots=True)
class Origin:
    """The names under which a request is known outside."""

    route: str = ""
    id: str = ""
    trace: str = ""
    """The W3C trace context of the caller; empty for none."""


@dataclass(frozen=True, slots=True)
class AnswerCallbacks:
    """The functions that a listener has called while a request is answered; None for no call.

    Most listeners need `ended` alone. `grew` is called for each token of each stream: it has to
    return within a microsecond.
    """

    ended: Callable[[int, Mapping[str, Any]], None] | None = None
    """Receive the index of an answer in the request, and the whole answer in the engine's schema.
    """
    grew: Callable[[int, int, float], None] | None = None
    """Receive the index of an answer, the number of its new tokens, and the monotonic time."""


@dataclass(frozen=True, slots=True)
class LetIn:
    """A request that was admitted."""

    generation: Generation
    """The generation that answers the request."""
    prompts: int
    """Count of the request's prompts."""
    copies: int
    """Count of the answers to each prompt; of answer `index` the prompt is `index // copies`."""
    until: float
    """The loop's time after which the answer is of no use to the client."""
    token_ids: Callable[[], Mapping[int, Sequence[int]]] | None
    """Return the ids of each prompt that an engine can be asked again, by the index of its first
    answer; None where the client forbids to keep them."""
    came_at: float = 0.0
    """The loop's time at which the request came, before it was encoded and waited."""
    streams: bool = False
    """True if the client gets the answers piece by piece."""
    origin: Origin = Origin()  # it is frozen


class Listener(Protocol):
    """Listens to every request, on any route."""

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerCallbacks] | None:
        """Listen to one request until it ends; None ignores it.

        An error that ends the request is raised through the block.
        """
