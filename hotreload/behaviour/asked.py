"""Questions that weights are asked to compare them with others, and what comes of asking one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAD = 4
"""Tokens of a text that are given; what comes after them is read."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to answer greedily, or tokens to go along."""

    prompt: str
    tokens: int
    """The most tokens of the answer."""
    along: tuple[int, ...] = ()
    """An answer that is given: after each of its tokens the weights only say what they expect."""
    is_text: bool = False
    """True for a text to be read: after its first tokens the weights go along the rest of it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectations of weights at one place of an answer, in nats."""

    token: float
    """The log-probability of the token that is there."""
    entropy: float
    likeliest: Mapping[int, float] = field(repr=False)
    """The log-probabilities of the likeliest tokens, the first of them first."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a question."""

    tokens: tuple[int, ...]
    """The answer, or the one that it went along; without the token that says that it is over."""
    text: str
    ended: str
    """`stop`, `length`, or `nonfinite` where the weights made no numbers of it."""
    expected: tuple[Expected, ...]
    """One for each token, and one for the end where it came to that."""
