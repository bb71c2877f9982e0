"""The evidence of a comparison: how new weights differ, as data, as JSON, in words, as an event."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hotreload.attempts import Evidence
from hotreload.events.event import LateEvidence
from hotreload.json_fields import Fields, revision_fields, round_numbers
from hotreload.picture.words import AttemptWords, count_of, plain
from hotreload.types import Revision

ALL_PAIRS = 3
"""The most answers that differ which the words show at length; in short they show one."""
BEHAVIOUR = "behaviour"
"""The code of a refusal of weights that answer too differently from those that are live."""


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


def behaviour_fields(behaviour: Behaviour) -> Fields:
    """Return how new weights differ from the live ones; what was not measured is null."""
    fields: Fields = round_numbers(asdict(behaviour))
    return fields


def evidence_of(found: Behaviour | None, cut_short: str = "") -> Evidence:
    """Return what a comparison found, and how far it came if it was cut short."""
    agreement = f"answers agree {found.agreement:.0%}" if found else ""
    cut = f"comparison {cut_short}" if cut_short else ""
    outcome = "cut_short" if cut_short else "compared" if found else "none"
    facts = {"behaviour": found and behaviour_fields(found), "not_compared": cut_short or None}
    return Evidence("compare", outcome, ", ".join(filter(None, (agreement, cut))), facts)


BLANK = evidence_of(None)
"""The evidence where nothing was compared."""


def words_of_comparison(attempt: Fields, at_length: bool) -> AttemptWords:
    """Say how the weights differ from those before them, and which answers differ most."""
    found = attempt.get("behaviour")
    lines = _list_differences(found["worst"])[: ALL_PAIRS if at_length else 1] if found else []
    if attempt.get("not_compared"):
        lines.append(f"comparison {plain(attempt['not_compared'])}")
    return AttemptWords(told={"behaviour": found and behaviour_text(found)}, lines=lines)


def _list_differences(worst: Sequence[Fields]) -> list[str]:
    return [
        f"answers differ: {each['prompt']!r}: live {each['live']!r}, new {each['new']!r}"
        for each in worst
        if each["live"] != each["new"]
    ]


def behaviour_text(found: Fields) -> str:
    """Say how weights that came differ from those before them."""
    agree, longer = f"answers agree {found['agreement']:.0%}", found["length_ratio"]
    is_whole = found["empty"] is not None
    if not is_whole:
        words = f"{agree} or more"
    elif longer is None:
        words = f"{agree}, something where there was nothing"
    else:
        words = f"{agree}, {longer:.2f} times as long"
    if found["mean_kl"] is not None:
        words += f", mean KL {found['mean_kl']:.3g} (noise {found['noise_kl'] or 0:.3g})"
    elif not found["tokens"]:
        words += ", no KL: the live answers hold nothing to be led along"
    if found["same_top"] is not None:
        words += f", same top {found['same_top']:.0%}"
    if found["perplexity_ratio"] is not None:
        words += f", perplexity {found['perplexity_ratio']:.3g} times"
    if right := found.get("right_answers"):
        words += f", {_right_answers(right)}"
    if found.get("heard") and found["heard_same_top"] is not None:
        requests = count_of(found["heard"], "heard request")
        words += f", {found['heard_same_top']:.0%} along {requests}"
    bad = {name: found[name] for name in ("empty", "endless", "repeating")}
    more = [f"{n} {name}" for name, n in bad.items() if is_whole and n > found[f"live_{name}"]]
    return f"{words}; of {found['questions']} answers {', '.join(more)}" if more else words


def _right_answers(right: Fields) -> str:
    """Say how many are, beside the live weights', and whether that can be chance."""
    counts = f"{right['right']} of {right['expected']} answers right (before {right['live_right']}"
    changed = f"{right['worse']} worse, {right['better']} better, p {right['p_worse']:.2g}"
    drop = right["smallest_drop"]
    seen = "no loss could be seen" if drop is None else f"a loss of {drop:.1%} could be seen"
    return f"{counts}; {changed}; {seen})"


@dataclass(frozen=True, slots=True)
class LiveCompared(LateEvidence):
    """New weights were compared with those before them, or that was cut short."""

    generation: int
    revision: Revision
    found: Evidence

    @property
    def name(self) -> str:
        return "behaviour.cut_short" if self.found.facts["not_compared"] else "behaviour.compared"

    @property
    def evidence(self) -> Evidence:
        return self.found

    def fields(self) -> Fields:
        return {"generation": self.generation, **revision_fields(self.revision), **self.found.facts}
