"""Judgements on weights by what they answer: once they are live, and beside those that are."""

from dataclasses import dataclass
from enum import StrEnum


class BakeOutcome(StrEnum):
    """The way a bake ended, or stands; also the metric label."""

    BAKING = "baking"
    HELD = "held"
    """Its time is over with too few answers, and it goes on."""
    PROMOTED = "promoted"
    CONVICTED = "convicted"
    INCONCLUSIVE = "inconclusive"
    """Too few answers could tell nothing: promoted all the same, or left, as the operator chose."""
    VOUCHED = "vouched"
    """An operator pinned it, or went back to it: it counts as promoted."""
    LEFT = "left"
    """An operator left it."""
    CUT_SHORT = "cut_short"
    """The daemon was restarted: what a start serves counts as promoted."""


@dataclass(frozen=True, slots=True)
class SignalCount:
    """Answers in which a signal was seen, of new and of old weights, and the shares possible."""

    signal: str
    hits: int
    low: float
    high: float
    old_hits: int
    old_low: float
    old_high: float
    finds: float | None
    """The smallest share in the new weights' answers that would convict them; None if none does."""


@dataclass(frozen=True, slots=True)
class Bake:
    """The judgement on a generation by its clients' answers, after it went live."""

    outcome: BakeOutcome
    since: float
    until: float
    """The end of its time; both are wall-clock seconds."""
    answers: int = 0
    against: int | None = None
    """The number of the generation whose answers it is compared with."""
    old_answers: int = 0
    signals: tuple[SignalCount, ...] = ()
    words: str = ""
    """Words for what came of it."""


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
    """The part of the longer of two answers up to the first token that differs, on average."""
    same_first: float
    """The share of answers that begin with the same token."""
    first_difference: int | None
    """The middle one of the places of the first difference; None where all are the same."""
    length_ratio: float | None
    """None where the live weights say nothing to anything, and the new ones something."""
    empty: int
    endless: int
    """Answers that were not over when they had all tokens that they may have."""
    repeating: int
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
    """Of new to live weights, on texts that are nobody's answer."""
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


@dataclass(frozen=True, slots=True)
class HearingNow:
    """Requests of clients that are heard, so that new weights are compared by them."""

    mirror: float
    """The share of those that end while a checkpoint waits."""
    replay: int
    """The most that are kept in memory."""
    kept: int
    mirrored: int
    """Those that were mirrored for the checkpoint that waits; 0 where none does."""
