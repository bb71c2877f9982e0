"""Compares new weights with the live ones before they answer anybody, and keeps to the limits.

The live weights answer the questions, and are led along their own answers: what differs there is
noise. The new ones answer them and are led along the live ones' answers. Both read the texts.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from hotreload.behaviour.asked import Answered, Led, Question
from hotreload.behaviour.built_in import questions, texts
from hotreload.core.ports import Engine
from hotreload.errors import AnswerNonfinite, Misbehaved
from hotreload.features.compare.accuracy import right_answers
from hotreload.features.compare.behaviour import Behaviour, RightAnswers
from hotreload.features.compare.differences import BothRead, Pair, report_of
from hotreload.features.compare.evidence import BEHAVIOUR
from hotreload.features.compare.known import KnownAnswers, KnownOfWeights
from hotreload.features.compare.marking import checked_answers
from hotreload.features.compare.settings import CompareLimits
from hotreload.threads import in_thread
from hotreload.types import Staged

log = logging.getLogger("hotreload.behaviour")

SMALLEST_NOISE = 1e-6
"""Nats that count as noise though none was seen: a multiple of nothing would forbid everything."""
FEWEST_HEARD = 16
"""Requests of clients below which their figures decide nothing."""
NO_ANSWER = Answered((), "", "", ())


class BehaviourRejected(Misbehaved):
    """The weights answer, and too differently from the live ones."""

    code = BEHAVIOUR


@dataclass(frozen=True, slots=True)
class BothWeights:
    """New weights beside those that were live when they came, in one engine."""

    engine: Engine
    live: Staged
    new: Staged


async def compared(
    both: BothWeights,
    known: KnownAnswers,
    further: Sequence[Question] = (),
    note: Callable[[str], None] = lambda words: None,
) -> Behaviour | None:
    """Ask live and new weights the same, and further questions beside what all are asked.

    What is `known` of the live ones is not asked again. None where they give nothing to compare
    with. `note` is told how far it has come.
    """
    began = time.monotonic()
    said = await _said_by_live(both, known, (*questions(), *further), note)
    if said is None:
        return None
    asked, live = said.asked, said.answers
    led = _all_led(said)
    note("the live weights had answered, the new ones not yet")
    try:
        new = await both.engine.answer_unseen(both.new, [*asked, *led, *texts()])
    except AnswerNonfinite as bad:
        raise BehaviourRejected(f"asked what every checkpoint is asked: {bad}") from bad
    at, count = len(asked), len(led)
    assert said.again is not None
    assert said.read is not None
    known.keep(both.new.fingerprint, KnownOfWeights(asked, new[:at], read=new[at + count :]))
    pairs = _pairs(asked, live, said.again, new[:at], new[at : at + count])
    read_by = [BothRead(*each) for each in zip(said.read, new[at + count :], strict=True)]
    # Off the loop, for which clients wait.
    found = await in_thread(
        lambda cancel: report_of(pairs, read_by), leave_as="a report", is_read=False
    )
    right = right_answers(await checked_answers(asked, live, new[:at]))
    return replace(found, right_answers=right, seconds=time.monotonic() - began)


async def _said_by_live(
    both: BothWeights,
    known: KnownAnswers,
    questions: Sequence[Question],
    note: Callable[[str], None],
) -> KnownOfWeights | None:
    """Return all that the live weights answer; None where they make no numbers."""
    note("the live weights had not answered yet")
    said = known.find(both.live.fingerprint, questions)
    said = said or KnownOfWeights(*await _answered_by_live(both, questions))
    if not said.asked:
        return None
    known.keep(both.live.fingerprint, said)  # the next try goes on where time is up
    note("the live weights had answered, and were being asked again")
    try:
        return await asked_again(both.engine, both.live, known, said)
    except AnswerNonfinite as bad:
        log.warning("behaviour.live_nonfinite", extra={"why": f"nothing is compared: {bad}"})
        return None


async def asked_again(
    engine: Engine, weights: Staged, known: KnownAnswers, said: KnownOfWeights
) -> KnownOfWeights:
    """Lead weights along what they said themselves: that is what no other weights explain."""
    if said.again is not None:
        return said
    led, read = _all_led(said), texts() if said.read is None else ()
    # In another order: rows of a batch are no part of what weights expect.
    found = await engine.answer_unseen(weights, [*reversed(led), *read])
    said = replace(said, again=found[: len(led)][::-1], read=said.read or found[len(led) :])
    known.keep(weights.fingerprint, said)
    return said


async def ask_again_what_is_live(both: BothWeights, known: KnownAnswers) -> None:
    """Ask weights that went live now what the next comparison needs to know of them."""
    said = known.of(both.new.fingerprint)
    if said is not None:
        with suppress(AnswerNonfinite):  # the next comparison says so
            await asked_again(both.engine, both.new, known, said)


async def _answered_by_live(
    both: BothWeights, asked: Sequence[Question]
) -> tuple[Sequence[Question], Sequence[Answered]]:
    """Ask the live weights; those questions are left out that they make no numbers of."""
    try:
        return asked, await both.engine.answer_unseen(both.live, asked)
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
    return [_led(question, answer) for question, answer in both if answer.to_be_led]


def _led(question: Question, answered: Answered) -> Led:
    """Along the first of its tokens, as many as were noted, and its end."""
    given = answered.to_be_led
    return Led(question.prompt, question.tokens, request=question.request, answer=given)


def _pairs(
    asked: Sequence[Question],
    live: Sequence[Answered],
    again: Sequence[Answered],
    new: Sequence[Answered],
    along: Sequence[Answered],
) -> list[Pair]:
    """Those that were answered by nothing have nothing to be led along."""
    agains, alongs = iter(again), iter(along)
    return [
        Pair(
            question.prompt,
            one,
            next(agains) if one.to_be_led else NO_ANSWER,
            other,
            next(alongs) if one.to_be_led else NO_ANSWER,
        )
        for question, one, other in zip(asked, live, new, strict=True)
    ]


def check_limits(found: Behaviour, limits: CompareLimits) -> None:
    """Raise BehaviourRejected, which names each limit and the worst answers, if one is broken."""
    broken = [*breaches(found, limits)]
    if broken:
        lost = found.right_answers.lost if found.right_answers else ()
        findings = [*broken, *lost, *map(str, found.worst)]
        raise BehaviourRejected(f"[compare.limits] {'; '.join(broken)}", findings=findings)


def breaches(found: Behaviour, limits: CompareLimits) -> Iterator[str]:
    """Say what is beyond a limit, the setting's name first; so is what was not measured.

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
