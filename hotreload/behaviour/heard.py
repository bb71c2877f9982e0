"""Requests of clients, and how their answers began: as much as weights are led along again. Pure.

They are in memory only: what comes of them are figures, and nothing here shows itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.behaviour.asked import Led

HEARD_TOKENS = 512
"""The most tokens of a request, the beginning of its answer among them: there must be room for a
whole batch of such where weights are asked."""
HEARD_ANSWER = 32
"""The most tokens of an answer that weights are led along."""
HEARD_AT_ONCE = 16
"""The most requests that are asked together."""


@dataclass(frozen=True, slots=True)
class HeardRequest:
    """A prompt and the beginning of the answer that its client got, as the engine's ids."""

    prompt: tuple[int, ...] = field(repr=False)
    answer: tuple[int, ...] = field(repr=False)

    @property
    def question(self) -> Led:
        """The question by which weights are led along this answer."""
        asked = {"input_ids": [*self.prompt]}
        return Led("", len(self.answer), request=asked, answer=self.answer)


def heard_of(prompt: Sequence[int], answer: Mapping[str, Any]) -> HeardRequest | None:
    """Return the prompt and the beginning of an answer that has ended, in the engine's schema.

    None for an answer that was aborted, and for one without all its token ids.
    """
    meta, ids = answer["meta_info"], answer.get("output_ids") or ()
    is_whole = (
        len(ids) == meta.get("completion_tokens") and meta["finish_reason"]["type"] != "abort"
    )
    if not (ids and is_whole):
        return None
    return HeardRequest(tuple(prompt), tuple(ids[:HEARD_ANSWER]))
