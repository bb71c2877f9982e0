"""Leads live and new weights along what clients were answered, however that was sampled.

What weights expected at each place takes much memory, so none is kept but until it is added up.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import batched

from hotreload.behaviour import HEARD_AT_ONCE, Answered, Expected, HeardRequest
from hotreload.errors import AnswerNonfinite, EngineLost, NotJudged
from hotreload.features.compare.comparison import FEWEST_HEARD, BehaviourRejected, BothWeights
from hotreload.features.compare.differences import kl_of
from hotreload.features.compare.evidence import Behaviour
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.behaviour")


async def also_by_heard(
    both: BothWeights,
    found: Behaviour,
    heard: Sequence[HeardRequest],
    seconds: float,
    *,
    decides: bool = False,
) -> Behaviour:
    """Add the figures of clients' answers to a report, as far as there is time.

    What fails here leaves the report as it was, but for new weights that make no numbers; where it
    `decides`, NotJudged is raised if there were enough of them and not enough could be compared.
    """
    sums = HeardSums()
    limit, began = asyncio.timeout(seconds), time.monotonic()
    try:
        async with limit:
            for some in batched(heard, HEARD_AT_ONCE):
                sums += await _along(both, some)
    except (EngineLost, BehaviourRejected):
        raise
    except Exception as fault:
        # What it says may be of what a client said.
        why = "[compare] time was up" if limit.expired() else type(fault).__name__
        if decides and sums.requests < FEWEST_HEARD <= len(heard):
            words = f"{sums.requests} of {len(heard)} requests of clients were compared: {why}"
            raise NotJudged(f"[compare.limits] {words}") from None
        if not limit.expired():
            log.warning("behaviour.not_replayed", extra={"why": why})
    return replace(with_heard(found, sums), seconds=found.seconds + time.monotonic() - began)


async def _along(both: BothWeights, heard: Sequence[HeardRequest]) -> "HeardSums":
    """Lead both along the same answers, the live ones twice; none where those make no numbers."""
    questions = [each.question for each in heard]
    try:
        live = await both.engine.unseen.ask(both.live, questions)
        # In another order: rows of a batch are no part of what weights expect.
        again = await both.engine.unseen.ask(both.live, questions[::-1])
    except AnswerNonfinite:
        return HeardSums()
    try:
        new = await both.engine.unseen.ask(both.new, questions)
    except AnswerNonfinite as bad:
        raise BehaviourRejected(f"asked what a client was answered: {bad}") from bad
    led = [AlongHeard(*each) for each in zip(live, again[::-1], new, strict=True)]
    # Off the loop, for which clients wait.
    return await in_thread(lambda cancel: sums_of(led), leave_as="adding up", is_read=False)


# --- the figures of it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlongHeard:
    """Live weights, the same once more, and new ones along what a client was answered."""

    live: Answered
    again: Answered
    new: Answered

    @property
    def places(self) -> Iterator[tuple[int, Expected, Expected, Expected]]:
        """Each token that the client got, and what the three expected in its place."""
        expected = (each.expected for each in (self.live, self.again, self.new))
        return zip(self.live.tokens, *expected, strict=False)


@dataclass(frozen=True, slots=True)
class HeardSums:
    """Sums over the places of clients' answers."""

    requests: int = 0
    places: int = 0
    kl: float = 0.0
    noise_kl: float = 0.0
    same_top: int = 0
    surprise: float = 0.0
    """By how much more the new weights are surprised, in nats."""

    def __add__(self, more: "HeardSums") -> "HeardSums":
        both = zip(astuple(self), astuple(more), strict=True)
        return HeardSums(*(one + other for one, other in both))


def sums_of(heard: Sequence[AlongHeard]) -> HeardSums:
    """Add up the figures of clients' answers; takes milliseconds for a batch."""
    places = [place for each in heard for place in each.places]
    return HeardSums(
        requests=len(heard),
        places=len(places),
        kl=math.fsum(kl_of(live, new, given) for given, live, _, new in places),
        noise_kl=math.fsum(kl_of(live, again, given) for given, live, again, _ in places),
        same_top=sum(live.top == new.top for _, live, _, new in places),
        surprise=math.fsum(live.token - new.token for _, live, _, new in places),
    )


def with_heard(found: Behaviour, sums: HeardSums) -> Behaviour:
    """Add them to a report; figures alone, for what was said is the clients'."""
    found = replace(found, heard=sums.requests, heard_tokens=sums.places)
    if not sums.places:
        return found
    return replace(
        found,
        heard_kl=sums.kl / sums.places,
        heard_noise_kl=sums.noise_kl / sums.places,
        heard_same_top=sums.same_top / sums.places,
        heard_perplexity_ratio=math.exp(min(sums.surprise / sums.places, 700.0)),
    )
