"""Questions to weights, and their answers: pure, with no engine, request or clock.

What clients sent is kept in memory only: figures come of it, and nothing here shows itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.errors import cut

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


# --- questions and texts that every pair of weights is compared by ------------------------------
# Few enough to be asked in one batch with their second asking: six to answer, six answers to be led
# along, four texts to read.

LONGEST_ANSWER = 16

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "1, 2, 3, 4, 5,",
    "def add(a, b):\n    return",
    "Water boils at a temperature of",
    "Question: What is the opposite of hot?\nAnswer:",
)
TEXTS = (
    "The sun rises in the east and sets in the west, and the days are longer in the summer.",
    "She opened the door, looked at the rain for a while, and went back for her umbrella.",
    "To bake bread you need flour, water, salt and yeast; the rest is patience and a hot oven.",
    "If a train leaves at nine and the way takes two hours, it arrives at eleven in the morning.",
)


def questions() -> tuple[Question, ...]:
    """The prompts, to be answered greedily."""
    return tuple(Question(prompt, LONGEST_ANSWER) for prompt in PROMPTS)


def texts() -> tuple[Text, ...]:
    """The texts, to be read."""
    return tuple(Text(text, LONGEST_ANSWER) for text in TEXTS)


# --- requests of clients, and how their answers began: as much as weights are led along again ---

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
