"""Questions that weights are asked to compare them with others, and what comes of asking one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEAD = 4
"""Tokens of a text that are given; what comes after them is read."""
NOTED = 17
"""The most places of an answer that are noted: its first tokens, or all 16 and its end.

More places would add little, and take memory.
"""
SHOWN = 200
"""Characters of a prompt or an answer that words about it show."""


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """A text that a right answer is, or holds, or that says how it must look."""

    kind: str
    """One of `CHECK_KINDS`."""
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to answer greedily."""

    prompt: str
    tokens: int
    """The most tokens of the answer."""
    request: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    """The fields of the engine's request where the prompt is no plain text: messages, or ids."""
    check: AnswerCheck | None = field(default=None, kw_only=True)
    """The answer that is expected, if one is."""
    place: str = field(default="", kw_only=True)
    """Its file and line, if an operator wrote it."""


@dataclass(frozen=True, slots=True)
class Led(Question):
    """A prompt and its answer: after each token of that the weights only say what they expect."""

    answer: tuple[int, ...] = field(kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Text(Question):
    """A text to be read: after its first tokens the weights are led along those that follow."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectations of weights at one place of an answer, in nats."""

    token: float
    """The log-probability of the token that is there."""
    entropy: float
    likeliest: Mapping[int, float] = field(repr=False)
    """The log-probabilities of the likeliest tokens, the first of them first."""

    @property
    def top(self) -> int:
        """The likeliest token."""
        return next(iter(self.likeliest))


@dataclass(frozen=True, slots=True)
class Answered:
    """Tokens that weights answered or were led along, and what they expected at each."""

    tokens: tuple[int, ...]
    """The answer, or the one that was given; without the token that says that it is over."""
    text: str
    ended: str
    """`stop` where the weights said that it is over, `length` where its tokens were used up."""
    expected: tuple[Expected, ...]
    """One for each token that was given; else one for each, and one for the end where it came to
    that, of the first `NOTED`."""

    @property
    def to_be_led(self) -> tuple[int, ...]:
        """Its first tokens, and the one that ended it, if it was noted what was expected there.

        That is the likeliest at the place behind its last one, for it is greedy.
        """
        ends = (each.top for each in self.expected[len(self.tokens) :])
        return (*self.tokens[: NOTED - 1], *ends)


def quote(text: str) -> str:
    """The text in quotes, cut where it is long."""
    return repr(cut(text, SHOWN))


def cut(text: str, most: int) -> str:
    """The text, or so many of its characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"
