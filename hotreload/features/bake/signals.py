"""Signs that an answer went wrong: yes or no each, from what the engine says of it alone."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from hotreload.types import AS_ASKED, FOR_A_SWAP

GRAM = 8
"""Tokens in a row that count as one saying."""
SAID_AGAIN = 4
"""The number of times that a piece comes in an answer that repeats itself, without overlap."""
TAIL = 1024
"""The number of last tokens that are searched: a circle goes on to the end."""


class Signal(StrEnum):
    """A sign that an answer went wrong."""

    ERROR = "error"
    """It broke off, or the weights made no numbers of its prompt."""
    EMPTY = "empty"
    """Its client got no text, and no call of a tool."""
    LENGTH = "length"
    """It ran into a limit of tokens or of time without a stop."""
    REPETITION = "repetition"
    """It says the same again and again."""
    LONG = "long"
    """It is longer than 19 of 20 answers of the weights that it is compared with."""


class SeenAnswer(NamedTuple):
    """All that is kept of an answer."""

    signals: frozenset[Signal]
    tokens: int


BROKEN_OFF = SeenAnswer(frozenset({Signal.ERROR}), 0)
"""An answer that there is none of: the weights made no numbers of its prompt."""
OUT_OF_TIME = SeenAnswer(frozenset({Signal.LENGTH}), 0)
"""An answer that did not end in the time that a request has."""


def seen_of(answer: Mapping[str, Any]) -> SeenAnswer | None:
    """Look at an answer that has ended, in the engine's schema.

    None for one that a client or a swap ended, and for one that was to have no token: it says
    nothing of the weights. Whether it is long depends on what it is compared with.
    """
    meta = answer["meta_info"]
    ended = meta["finish_reason"]
    if ended.get("length") == 0:
        return None
    ids: Sequence[int] = answer.get("output_ids") or ()
    tokens = int(meta.get("completion_tokens") or len(ids))
    if ended["type"] == "abort":
        was_meant = ended.get("code") in (AS_ASKED, FOR_A_SWAP)
        return None if was_meant else BROKEN_OFF._replace(tokens=tokens)
    signs = {
        Signal.EMPTY: not str(answer.get("text", "")).strip() and not answer.get("tool_calls"),
        Signal.LENGTH: ended["type"] == "length",
        Signal.REPETITION: repeats(ids),
    }
    return SeenAnswer(frozenset(signal for signal, is_there in signs.items() if is_there), tokens)


def repeats(ids: Sequence[int]) -> bool:
    """True if the end of an answer holds the same few tokens in a row again and again."""
    tail = ids[-TAIL:]
    heard: dict[tuple[int, ...], tuple[int, int]] = {}
    for at in range(len(tail) - GRAM + 1):
        gram = tuple(tail[at : at + GRAM])
        times, free_from = heard.get(gram, (0, 0))
        if at < free_from:  # a run of one token is said again where it began anew, not one further
            continue
        if times + 1 == SAID_AGAIN:
            return True
        heard[gram] = (times + 1, at + GRAM)
    return False
