"""The interface of features that listen to requests, from admission to the last token."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from hotreload.types import Generation

AnswerEnded = Callable[[int, Mapping[str, Any]], None]
"""Receive an ended answer, in the engine's schema, and its index in the request."""


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


class Listener(Protocol):
    """Listens to every request, on any route."""

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerEnded | None]:
        """Listen to one request until it ends; yield None to ignore its answers.

        Called once a request, and may make there the function that is called for each answer. An
        error that ends the request is raised through the block.
        """
