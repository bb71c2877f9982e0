"""The report on new weights: how their answers differ from those of the live ones. Pure.

Words as llama.cpp's `perplexity --kl-divergence` has them. The live weights are asked twice, so
each figure that could be noise has its floor: what two askings of the same weights differ by.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from hotreload.behaviour import NOTED, Answered, Expected
from hotreload.errors import cut
from hotreload.features.compare.evidence import Behaviour, BothAnswers

REPEATS = 0.5
"""An answer repeats itself where fewer of its pairs of tokens than that part are unlike others."""
FEWEST = 6
"""Tokens below which no answer is said to repeat itself."""
SHOWN_EACH = 130
"""Characters that are kept of a prompt, and of each answer, that differ most: the history keeps
many attempts."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Live and new weights at one question."""

    prompt: str
    live: Answered
    again: Answered
    """The live weights once more, along their own answer."""
    new: Answered | None
    """None while the new weights' own answer is not known."""
    along: Answered
    """The new weights along the live ones' answer."""
    most: int
    """The most tokens of an answer."""

    @property
    def in_common(self) -> int:
        """Count of tokens up to the first that differs, as far as that is known."""
        new = self._tops if self.new is None else self.new.tokens
        both = zip(self.live.tokens, new, strict=False)
        return sum(1 for _ in takewhile(lambda each: each[0] == each[1], both))

    @property
    def begin_alike(self) -> bool:
        """True if both have the same first token, or are over at once."""
        return self.in_common > 0 or self.agreement == 1

    @property
    def agreement(self) -> float:
        """The part of the longer answer that both have in common; the least that it can be."""
        longer = self.longer
        return self.in_common / longer if longer else 1.0

    @property
    def _tops(self) -> tuple[int, ...]:
        """The tokens that the new weights would say along the live ones' answer."""
        return tuple(each.top for each in self.along.expected)

    @property
    def longer(self) -> int:
        """The length of the longer answer; the most where it is not known."""
        if self.new is not None:
            return max(len(self.live.tokens), len(self.new.tokens))
        whole = self.live.to_be_led if len(self.live.tokens) < NOTED else ()
        return len(self.live.tokens) if whole and whole == self._tops else self.most


@dataclass(frozen=True, slots=True)
class BothRead:
    """Live and new weights along one text."""

    live: Answered
    new: Answered


def report_of(pairs: Sequence[Pair], read: Sequence[BothRead]) -> Behaviour:
    """Compare what both expected along the live weights' answers, and texts."""
    kl = sorted(_kls((pair.live, pair.along) for pair in pairs))
    floor = sorted(_kls((pair.live, pair.again) for pair in pairs))
    live = [pair.live for pair in pairs]
    return Behaviour(
        questions=len(pairs),
        tokens=sum(len(each.tokens) for each in live),
        agreement=_mean([pair.agreement for pair in pairs]),
        same_first=_mean([float(pair.begin_alike) for pair in pairs]),
        first_difference=_first_difference(pairs),
        length_ratio=None,
        empty=None,
        endless=None,
        repeating=None,
        live_empty=sum(not each.tokens for each in live),
        live_endless=sum(each.ended == "length" for each in live),
        live_repeating=sum(map(_repeats, live)),
        mean_kl=_mean(kl) if kl else None,
        p99_kl=_at(kl, 0.99) if kl else None,
        same_top=_same_top((pair.live, pair.along) for pair in pairs),
        noise_kl=_mean(floor) if floor else None,
        noise_same_top=_same_top((pair.live, pair.again) for pair in pairs),
        perplexity_ratio=_perplexity_ratio(read),
        entropy=_entropy([pair.along for pair in pairs]),
        live_entropy=_entropy(live),
    )


def with_answers(found: Behaviour, pairs: Sequence[Pair]) -> Behaviour:
    """Add the figures of the new weights' own answers to a report."""
    live, new = [pair.live for pair in pairs], [pair.new for pair in pairs if pair.new is not None]
    return replace(
        found,
        agreement=_mean([pair.agreement for pair in pairs]),
        same_first=_mean([float(pair.begin_alike) for pair in pairs]),
        first_difference=_first_difference(pairs),
        length_ratio=_ratio(_lengths(new), _lengths(live)),
        empty=sum(not each.tokens for each in new),
        endless=sum(each.ended == "length" for each in new),
        repeating=sum(map(_repeats, new)),
        worst=tuple(map(_both, sorted(pairs, key=_by_difference)[:3])),
    )


def kl_of(live: Expected, new: Expected, given: int | None = None) -> float:
    """The Kullback-Leibler divergence of what both expected where `given` is.

    That is the live one's first choice, unless a client's answer has another token there. It
    is of the tokens that the live one names, and of all others as one. Those that the new one does
    not name count as likely as the last that it does: so it is never more than that of all tokens.
    """
    least = min(new.likeliest.values())
    known = {**new.likeliest, live.top if given is None else given: new.token}
    pairs = [(log, known.get(token, least)) for token, log in live.likeliest.items()]
    named = math.fsum(math.exp(one) * (one - other) for one, other in pairs)
    rest = _rest(live.likeliest.values())
    others = _rest(known[token] for token in live.likeliest if token in known)
    return max(0.0, named + rest * (math.log(rest) - math.log(others)))


def _rest(logs: Iterable[float]) -> float:
    """The probability of all others; never quite none, so that its logarithm is a number."""
    return max(1 - math.fsum(map(math.exp, logs)), 1e-9)


def _along(pairs: Iterator[tuple[Answered, Answered]]) -> Iterator[tuple[Expected, Expected]]:
    """The places of an answer, as each of two expected them."""
    for one, other in pairs:
        yield from zip(one.expected, other.expected, strict=False)


def _kls(pairs: Iterator[tuple[Answered, Answered]]) -> Iterator[float]:
    return (kl_of(one, other) for one, other in _along(pairs))


def _same_top(pairs: Iterator[tuple[Answered, Answered]]) -> float | None:
    same = [one.top == other.top for one, other in _along(pairs)]
    return _mean([float(each) for each in same]) if same else None


def _perplexity_ratio(read: Sequence[BothRead]) -> float | None:
    pairs = [*_along((each.live, each.new) for each in read)]
    if not pairs:
        return None
    more = _mean([live.token - new.token for live, new in pairs])
    return math.exp(min(more, 700.0))


def _entropy(answers: Sequence[Answered]) -> float | None:
    found = [each.entropy for answer in answers for each in answer.expected]
    return _mean(found) if found else None


def _first_difference(pairs: Sequence[Pair]) -> int | None:
    """The middle one of the places where answers first differ; None where none does."""
    differ = [pair for pair in pairs if pair.agreement < 1]
    return sorted(pair.in_common for pair in differ)[len(differ) // 2] if differ else None


def _repeats(answer: Answered) -> bool:
    pairs = [*zip(answer.tokens, answer.tokens[1:], strict=False)]
    return len(answer.tokens) >= FEWEST and len(set(pairs)) < REPEATS * len(pairs)


def _lengths(answers: Sequence[Answered]) -> int:
    return sum(len(each.tokens) for each in answers)


def _by_difference(pair: Pair) -> tuple[float, float]:
    """The worst first: those that agree least, then those that expected other things."""
    return pair.agreement, -math.fsum(_kls(iter([(pair.live, pair.along)])))


def _both(pair: Pair) -> BothAnswers:
    assert pair.new is not None
    prompt, live = cut(pair.prompt, SHOWN_EACH), cut(pair.live.text, SHOWN_EACH)
    return BothAnswers(prompt, live, cut(pair.new.text, SHOWN_EACH), _why(pair))


def _why(pair: Pair) -> str:
    """Say by which figure the answers differ."""
    if pair.agreement < 1:
        return f"agreement: {pair.in_common} of {pair.longer} tokens are alike"
    kl = [*_kls(iter([(pair.live, pair.along)]))]
    return f"mean_kl: {_mean(kl):.3g} along the same answer" if kl else "the same answer"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _ratio(new: int, live: int) -> float | None:
    """None for more than nothing, which is no number of times as much."""
    if live:
        return new / live
    return None if new else 1.0


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
