"""Compares new weights with the live ones before they answer anybody, and keeps to the limits.

The live weights answer the questions, and go along their own answers once more: what differs there
is noise. The new ones answer them and go along the live ones' answers. Both read the texts.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hotreload.behaviour.asked import Answered, Question
from hotreload.behaviour.built_in import questions, texts
from hotreload.behaviour.report import BothRead, Pair, report_of
from hotreload.core.ports import Engine
from hotreload.core.rules import BehaviourLimits
from hotreload.errors import AnswerNonfinite, CheckpointRejected
from hotreload.judgements import Behaviour
from hotreload.types import BEHAVIOUR, Staged

SMALLEST_NOISE = 1e-6
"""Nats that count as noise though none was seen: a multiple of nothing would forbid everything."""
NO_ANSWER = Answered((), "", "", ())


class BehaviourRejected(CheckpointRejected):
    """The weights answer, and too differently from the live ones."""

    code = BEHAVIOUR


async def compared(engine: Engine, staged: Staged) -> Behaviour | None:
    """Ask live and new weights the same; None where the live ones give nothing to compare with."""
    began = time.monotonic()
    asked, read = questions(), texts()
    try:
        live = await engine.answer_unseen(engine.live, asked)
        led = [replace(q, along=a.tokens) for q, a in zip(asked, live, strict=True) if a.tokens]
        # In another order: rows of a batch are no part of what weights expect.
        again = await engine.answer_unseen(engine.live, [*reversed(led), *read])
    except AnswerNonfinite:
        return None
    try:
        new = await engine.answer_unseen(staged, [*asked, *led, *read])
    except AnswerNonfinite as bad:
        raise BehaviourRejected(f"asked what every checkpoint is asked: {bad}") from bad
    at, count = len(asked), len(led)
    pairs = _pairs(asked, live, again[:count][::-1], new[:at], new[at : at + count])
    both = zip(again[count:], new[at + count :], strict=True)
    found = report_of(pairs, [BothRead(*each) for each in both])
    return replace(found, seconds=time.monotonic() - began)


def _pairs(
    asked: Sequence[Question],
    live: Sequence[Answered],
    again: Sequence[Answered],
    new: Sequence[Answered],
    along: Sequence[Answered],
) -> list[Pair]:
    """Those that were answered by nothing have nothing to go along."""
    agains, alongs = iter(again), iter(along)
    return [
        Pair(
            question.prompt,
            one,
            next(agains) if one.tokens else NO_ANSWER,
            other,
            next(alongs) if one.tokens else NO_ANSWER,
        )
        for question, one, other in zip(asked, live, new, strict=True)
    ]


def check_limits(found: Behaviour, limits: BehaviourLimits) -> None:
    """Raise BehaviourRejected, which names each limit and the worst answers, if one is broken."""
    broken = [*breaches(found, limits)]
    if broken:
        raise BehaviourRejected(
            f"[behaviour.limits] {'; '.join(broken)}", findings=[*broken, *found.worst]
        )


def breaches(found: Behaviour, limits: BehaviourLimits) -> Iterator[str]:
    """Say what is beyond a limit, the setting's name first; so is what was not measured."""
    over_noise = None
    if found.mean_kl is not None and found.noise_kl is not None:
        over_noise = found.mean_kl / max(found.noise_kl, SMALLEST_NOISE)
    longer = max(found.length_ratio, 1 / found.length_ratio if found.length_ratio else float("inf"))
    most = (
        ("max_kl", found.mean_kl, limits.max_kl),
        ("max_kl_over_noise", over_noise, limits.max_kl_over_noise),
        ("max_perplexity_ratio", found.perplexity_ratio, limits.max_perplexity_ratio),
        ("max_length_ratio", longer, limits.max_length_ratio),
    )
    least = (
        ("min_agreement", found.agreement, limits.min_agreement),
        ("min_change", found.mean_kl, limits.min_change),
    )
    for name, value, limit in most:
        if limit is not None and not (value is not None and value <= limit):
            yield f"{name}: {_figure(value)} is over {limit:g}"
    for name, value, limit in least:
        if limit is not None and not (value is not None and value >= limit):
            yield f"{name}: {_figure(value)} is under {limit:g}"


def _figure(value: float | None) -> str:
    return "what was not measured" if value is None else f"{value:.3g}"
