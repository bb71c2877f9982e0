"""Compares new weights with the live ones, step by step, and keeps to the limits.

The live weights answer the questions, and are led along their own answers: what differs there is
noise. The new ones are led along the live ones' answers, and both read the texts: a few steps, by
which most limits are decided. Then the new ones answer the questions, too.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from hotreload.behaviour import Answered, Led, Question, questions, texts
from hotreload.core.ports import Engine
from hotreload.errors import AnswerNonfinite, Misbehaved
from hotreload.features.compare.accuracy import checked_answers, right_answers
from hotreload.features.compare.differences import BothRead, Pair, report_of, with_answers
from hotreload.features.compare.evidence import BEHAVIOUR, Behaviour, RightAnswers
from hotreload.features.compare.settings import CompareLimits
from hotreload.threads import in_thread
from hotreload.types import Staged

log = logging.getLogger("hotreload.behaviour")

SMALLEST_NOISE = 1e-6
"""Nats that count as noise though none was seen: a multiple of nothing would forbid everything."""
FEWEST_HEARD = 16
"""Requests of clients below which their figures decide nothing."""
NO_ANSWER = Answered((), "", "", ())
KEPT_SETS = 2
"""Sets of weights whose answers are kept: the live ones, and new ones."""


@dataclass(frozen=True, slots=True)
class KnownOfWeights:
    """Answers of one set of weights."""

    asked: Sequence[Question]
    answers: Sequence[Answered]
    read: Sequence[Answered] | None = None
    """Expectations along the texts; None where these were not read yet."""
    again: Sequence[Answered] | None = None
    """Expectations along its own answers: what it differs by from itself; None if not asked yet."""


class KnownAnswers:
    """The answers of a few sets of weights, by their fingerprints."""

    def __init__(self) -> None:
        self._by_weights = OrderedDict[str, KnownOfWeights]()

    def find(self, fingerprint: str, asked: Sequence[Question]) -> KnownOfWeights | None:
        """Find what these weights answered to just these questions."""
        said = self.of(fingerprint)
        return said if said is not None and tuple(said.asked) == tuple(asked) else None

    def of(self, fingerprint: str) -> KnownOfWeights | None:
        """Return what these weights answered last."""
        if fingerprint in self._by_weights:
            self._by_weights.move_to_end(fingerprint)
        return self._by_weights.get(fingerprint)

    def keep(self, fingerprint: str, said: KnownOfWeights) -> None:
        """Replace the kept answers of these weights."""
        self._by_weights[fingerprint] = said
        self._by_weights.move_to_end(fingerprint)
        if len(self._by_weights) > KEPT_SETS:
            self._by_weights.popitem(last=False)


class BehaviourRejected(Misbehaved):
    """The weights answer, and too differently from the live ones."""

    code = BEHAVIOUR


@dataclass(frozen=True, slots=True)
class BothWeights:
    """New weights beside those that were live when they came, in one engine."""

    engine: Engine
    live: Staged
    new: Staged


class BehaviourComparison:
    """A comparison of new weights with live ones, whose report grows step by step."""

    def __init__(
        self, both: BothWeights, known: KnownAnswers, further: Sequence[Question] = ()
    ) -> None:
        """Both are asked `further` questions, too.

        The live weights are asked no question that they are `known` to have answered.
        """
        self.both = both
        self.found: Behaviour | None = None
        """The report, as far as it is known; None before the first step, and where there is none.

        There is none where the live weights make no numbers.
        """
        self.so_far = "the live weights had not answered yet"
        self._is_led = False
        self._known = known
        self._questions = (*questions(), *further)
        self._said: KnownOfWeights | None = None
        """All that the live weights say."""
        self._along: Sequence[Answered] = ()
        self._read: Sequence[Answered] = ()
        """Expectations of the new weights along the live ones' answers, and along the texts."""

    @property
    def is_over(self) -> bool:
        """True if no step adds to the report any more."""
        return self._is_led and (self.found is None or self.found.empty is not None)

    async def lead(self) -> None:
        """Lead the new weights along the live ones' answers and texts: many places in one step."""
        if self._is_led:
            return
        began = time.monotonic()
        self._said = said = await self._said_by_live()
        if said is None:
            self._is_led = True
            return
        self.so_far = "the live weights had answered, the new ones not yet"
        led = _all_led(said)
        along = await self._asked_new([*led, *texts()])
        self._along, self._read = along[: len(led)], along[len(led) :]
        assert said.read is not None
        pairs, read = self._pairs(), [*map(BothRead, said.read, self._read)]
        self.found = await _off_the_loop(lambda: report_of(pairs, read))
        self._note_time(began)
        self._is_led = True

    async def answer(self) -> None:
        """Have the new weights answer the questions, once they were led along."""
        said, found = self._said, self.found
        if self.is_over or said is None or found is None:
            return
        began = time.monotonic()
        self.so_far = "the new weights were led along the live ones' answers, and gave none yet"
        answers = await self._asked_new(said.asked)
        self._known.keep(
            self.both.new.fingerprint, KnownOfWeights(said.asked, answers, read=self._read)
        )
        pairs = self._pairs(answers)
        self.found = await _off_the_loop(lambda: with_answers(found, pairs))
        right = right_answers(await checked_answers(said.asked, said.answers, answers))
        self.found = replace(self.found, right_answers=right)
        self._note_time(began)
        self.so_far = "both had answered"

    async def _said_by_live(self) -> KnownOfWeights | None:
        """Return all that the live weights answer; None where they make no numbers."""
        live, known = self.both.live, self._known
        said = known.find(live.fingerprint, self._questions)
        said = said or KnownOfWeights(*await _answered_by_live(self.both, self._questions))
        if not said.asked:
            return None
        known.keep(live.fingerprint, said)  # the next try goes on where time is up
        self.so_far = "the live weights had answered, and were being asked again"
        try:
            return await _asked_again(self.both.engine, live, known, said)
        except AnswerNonfinite as bad:
            log.warning("behaviour.live_nonfinite", extra={"why": f"nothing is compared: {bad}"})
            return None

    async def _asked_new(self, asked: Sequence[Question]) -> Sequence[Answered]:
        try:
            return await self.both.engine.unseen.ask(self.both.new, asked)
        except AnswerNonfinite as bad:
            raise BehaviourRejected(f"asked what every checkpoint is asked: {bad}") from bad

    def _pairs(self, answers: Sequence[Answered] | None = None) -> list[Pair]:
        """Pair what both weights said to each question.

        Those that were answered by nothing have nothing to be led along.
        """
        said = self._said
        assert said is not None
        assert said.again is not None
        again, along = iter(said.again), iter(self._along)
        new = [None] * len(said.asked) if answers is None else answers
        return [
            Pair(
                question.prompt,
                live,
                next(again) if live.to_be_led else NO_ANSWER,
                other,
                next(along) if live.to_be_led else NO_ANSWER,
                question.tokens,
            )
            for question, live, other in zip(said.asked, said.answers, new, strict=True)
        ]

    def _note_time(self, began: float) -> None:
        assert self.found is not None
        seconds = self.found.seconds + time.monotonic() - began
        self.found = replace(self.found, seconds=seconds)


async def compare_both(
    both: BothWeights, known: KnownAnswers, further: Sequence[Question] = ()
) -> Behaviour | None:
    """Compare both in all figures; None where the live weights make no numbers."""
    comparison = BehaviourComparison(both, known, further)
    await comparison.lead()
    await comparison.answer()
    return comparison.found


async def _off_the_loop(make: Callable[[], Behaviour]) -> Behaviour:
    """Make a report beside the loop, for which clients wait."""
    return await in_thread(lambda cancel: make(), leave_as="a report", is_read=False)


async def ask_again_what_is_live(both: BothWeights, known: KnownAnswers) -> None:
    """Ask weights that went live now what the next comparison needs to know of them."""
    said = known.of(both.new.fingerprint)
    if said is not None:
        with suppress(AnswerNonfinite):  # the next comparison says so
            await _asked_again(both.engine, both.new, known, said)


async def _asked_again(
    engine: Engine, weights: Staged, known: KnownAnswers, said: KnownOfWeights
) -> KnownOfWeights:
    """Lead weights along what they said themselves: that is what no other weights explain."""
    if said.again is not None:
        return said
    led, read = _all_led(said), texts() if said.read is None else ()
    # In another order: rows of a batch are no part of what weights expect.
    found = await engine.unseen.ask(weights, [*reversed(led), *read])
    said = replace(said, again=found[: len(led)][::-1], read=said.read or found[len(led) :])
    known.keep(weights.fingerprint, said)
    return said


async def _answered_by_live(
    both: BothWeights, asked: Sequence[Question]
) -> tuple[Sequence[Question], Sequence[Answered]]:
    """Ask the live weights; those questions are left out that they make no numbers of."""
    try:
        return asked, await both.engine.unseen.ask(both.live, asked)
    except AnswerNonfinite as bad:
        if len(asked) == 1:
            log.warning("behaviour.live_nonfinite", extra={"why": f"{asked[0].place}: {bad}"})
            return (), ()
    middle = len(asked) // 2
    parts = [await _answered_by_live(both, some) for some in (asked[:middle], asked[middle:])]
    (first, said), (second, also_said) = parts
    return (*first, *second), (*said, *also_said)


def _all_led(said: KnownOfWeights) -> list[Led]:
    both = zip(said.asked, said.answers, strict=True)
    return [_lead_along(question, answer) for question, answer in both if answer.to_be_led]


def _lead_along(question: Question, answered: Answered) -> Led:
    """Along the first of its tokens, as many as were noted, and its end."""
    given = answered.to_be_led
    return Led(question.prompt, question.tokens, request=question.request, answer=given)


def check_limits(found: Behaviour, limits: CompareLimits) -> None:
    """Raise BehaviourRejected, which names each limit and the worst answers, if one is broken."""
    broken = [*breaches(found, limits)]
    if broken:
        lost = found.right_answers.lost if found.right_answers else ()
        findings = [*broken, *lost, *map(str, found.worst)]
        raise BehaviourRejected(f"[compare.limits] {'; '.join(broken)}", findings=findings)


def breaches(found: Behaviour, limits: CompareLimits) -> Iterator[str]:
    """Name each limit that is broken; a figure that was not measured breaks its limit.

    Where the live weights say nothing there is nothing to be led along: that breaks no limit.
    """
    if found.mean_kl is None and not found.tokens:
        limits = replace(limits, max_kl=None, max_kl_over_noise=None, min_change=None)
    over_noise = None
    if found.mean_kl is not None and found.noise_kl is not None:
        over_noise = found.mean_kl / max(found.noise_kl, SMALLEST_NOISE)
    longer = max(found.length_ratio, 1 / found.length_ratio) if found.length_ratio else inf
    most = [
        ("max_kl", found.mean_kl, limits.max_kl),
        ("max_kl_over_noise", over_noise, limits.max_kl_over_noise),
        ("max_perplexity_ratio", found.perplexity_ratio, limits.max_perplexity_ratio),
        ("max_length_ratio", longer, limits.max_length_ratio),
    ]
    least = [
        ("min_agreement", found.agreement, limits.min_agreement),
        ("min_change", found.mean_kl, limits.min_change),
    ]
    if found.heard >= FEWEST_HEARD:
        ratio = limits.max_heard_perplexity_ratio
        most.append(("max_heard_perplexity_ratio", found.heard_perplexity_ratio, ratio))
        least.append(("min_heard_same_top", found.heard_same_top, limits.min_heard_same_top))
    for name, value, limit in most:
        if limit is not None and not (value is not None and value <= limit):
            yield f"{name}: {_figure(value)} is over {limit:g}"
    for name, value, limit in least:
        if limit is not None and not (value is not None and value >= limit):
            yield f"{name}: {_figure(value)} is under {limit:g}"
    right, limit = found.right_answers, limits.min_accuracy
    if limit is not None and not (right is not None and right.accuracy >= limit):
        yield f"min_accuracy: {_right(right)} is under {limit:g}"


def _right(found: RightAnswers | None) -> str:
    """The accuracy, and whether it is worse than that of the live weights by more than chance."""
    if found is None:
        return _figure(None)
    changed = f"{found.worse} worse, {found.better} better, p {found.p_worse:.2g}"
    drop = found.smallest_drop
    seen = "no loss could be seen" if drop is None else f"a loss of {drop:.2g} could be seen"
    return f"{found.accuracy:.3g} (the live weights' {found.live_accuracy:.3g}; {changed}; {seen})"


def _figure(value: float | None) -> str:
    return "what was not measured" if value is None else f"{value:.3g}"
