"""The door for features that listen to requests, from when one is let in to its last token."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from hotreload.types import Generation

AnswerEnded = Callable[[int, Mapping[str, Any]], None]
"""Take an answer that has ended, in the engine's schema, and its index in the request."""


@dataclass(frozen=True, slots=True)
class LetIn:
    """A request that was let in."""

    generation: Generation
    """The weights that answer it."""
    prompts: int
    """Count of its prompts."""
    copies: int
    """Count of the answers to each prompt; of answer `index` the prompt is `index // copies`."""
    until: float
    """The loop's time when its answer is of no more use."""
    token_ids: Callable[[], Mapping[int, Sequence[int]]] | None
    """Return the ids of each prompt that an engine can be asked again, by the index of its first
    answer; None where its client forbids that it is kept."""


class Listener(Protocol):
    """Listens to every request, whatever its route."""

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerEnded | None]:
        """Listen to one request until it leaves; None where its answers are of no interest.

        It is called once a request, so what is called for each answer may be made here. What ends
        the request is raised through the block.
        """
