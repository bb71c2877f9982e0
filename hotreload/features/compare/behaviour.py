"""The differences between the answers of new weights and those of the live ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RightAnswers:
    """Answers that were expected, of new and of live weights to the same questions."""

    expected: int
    """The number of questions whose answer is expected."""
    right: int
    live_right: int
    better: int
    """Questions that the new weights alone answer right."""
    worse: int
    """Questions that the live weights alone answer right."""
    p_worse: float
    """The chance that so many of those that changed get worse by accident: McNemar's exact test."""
    smallest_drop: float | None
    """The smallest loss of accuracy that these questions would have shown; None if none."""
    lost: tuple[str, ...] = ()
    """The first of those that got worse, with both answers."""

    @property
    def accuracy(self) -> float:
        """The share of right answers of the new weights."""
        return self.right / self.expected

    @property
    def live_accuracy(self) -> float:
        """The share of right answers of the live weights."""
        return self.live_right / self.expected


@dataclass(frozen=True, slots=True)
class BothAnswers:
    """The answers of live and new weights to one prompt; each text is cut where it is long."""

    prompt: str
    live: str
    new: str
    why: str
    """The figure by which they differ."""

    def __str__(self) -> str:
        both = f"live {self.live!r}, new {self.new!r}"
        return f"{self.prompt!r}: {both if self.live != self.new else f'the same, {self.live!r}'}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Differences between what new weights answered and what the live ones did.

    Divergences and entropies are in nats; those are None that an engine cannot measure.
    """

    questions: int
    tokens: int
    agreement: float
    """The part of the longer of two answers up to the first token that differs, on average.

    The least that it can be while the new weights' own answers are not known.
    """
    same_first: float
    """The share of answers that begin with the same token."""
    first_difference: int | None
    """The middle one of the places of the first difference; None where all are the same."""
    length_ratio: float | None
    """None where the live weights say nothing to anything, and the new ones something."""
    empty: int | None
    """None, as the next two, while the new weights' own answers are not known."""
    endless: int | None
    """Answers that were not over when they had all tokens that they may have."""
    repeating: int | None
    live_empty: int
    live_endless: int
    live_repeating: int
    mean_kl: float | None = None
    """The divergence of the new weights from the live ones, along the answers of those."""
    p99_kl: float | None = None
    same_top: float | None = None
    noise_kl: float | None = None
    """The same of the live weights, asked twice."""
    noise_same_top: float | None = None
    perplexity_ratio: float | None = None
    """Of new to live weights, on texts that neither wrote."""
    entropy: float | None = None
    live_entropy: float | None = None
    worst: tuple[BothAnswers, ...] = ()
    """The answers that differ most; never those to a client's prompt."""
    right_answers: RightAnswers | None = None
    """None where no answer was expected."""
    seconds: float = 0.0
    heard: int = 0
    """Requests of clients whose answers both were led along; the figures of those are apart."""
    heard_tokens: int = 0
    heard_kl: float | None = None
    heard_noise_kl: float | None = None
    heard_same_top: float | None = None
    heard_perplexity_ratio: float | None = None
