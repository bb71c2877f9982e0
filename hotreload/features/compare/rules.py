"""The operator's decisions about comparing new weights with the live ones."""

from dataclasses import dataclass

from hotreload.behaviour.asked import Question

UNDECIDING_SECONDS = 2.0
"""The most time that a comparison by which nothing decides keeps new weights from going live."""


@dataclass(frozen=True, slots=True)
class BehaviourLimits:
    """Differences from the live weights that are allowed; None allows each."""

    min_agreement: float | None = None
    max_kl: float | None = None
    max_kl_over_noise: float | None = None
    """As a multiple of what the live weights differ by when they are asked twice."""
    max_perplexity_ratio: float | None = None
    max_length_ratio: float | None = None
    min_change: float | None = None
    """The least mean divergence: what differs by less was probably meant to be other weights."""
    min_accuracy: float | None = None
    """The least share of right answers, of those that are expected."""
    max_heard_perplexity_ratio: float | None = None
    """Along clients' answers, as the next one; few of them decide nothing."""
    min_heard_same_top: float | None = None

    @property
    def are_any(self) -> bool:
        """True if something is not allowed."""
        return self != BehaviourLimits()

    @property
    def are_of_heard(self) -> bool:
        """True if something is not allowed along clients' answers."""
        return (self.max_heard_perplexity_ratio, self.min_heard_same_top) != (None, None)


@dataclass(frozen=True, slots=True)
class HearingRules:
    """Requests of clients by which new weights are compared, beside what is asked of all."""

    mirror: float = 0.0
    """The share of those that end while a checkpoint waits."""
    replay: int = 0
    """So many of the last are kept in memory."""

    @property
    def are_any(self) -> bool:
        """True if some are heard."""
        return self.mirror > 0 or self.replay > 0


@dataclass(frozen=True, slots=True)
class CompareRules:
    """The time for a comparison, what is asked, and how far new weights may go."""

    within: float = 10.0
    """Seconds for comparing new weights with the live ones, before they go live; 0: nobody does."""
    shadow_share: float = 1.0
    """The part of their turns in which new weights compute, beside clients."""
    limits: BehaviourLimits = BehaviourLimits()
    """Limits on how they may differ."""
    corpus: tuple[Question, ...] = ()
    """Questions that both are asked, beside those that every checkpoint is."""
    is_wanted_whole: bool = False
    """True if somebody decides by the report: then it gets its time though no limit does."""

    def seconds(self, *, is_dry_run: bool) -> float:
        """Time for it where clients are answered meanwhile: little, where nothing decides by it."""
        most = self.within / self.shadow_share
        decides = self.limits.are_any or self.is_wanted_whole
        return most if decides or is_dry_run else min(most, UNDECIDING_SECONDS)
