"""Leads live and new weights along what clients were answered, however that was sampled."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import batched

from hotreload.behaviour.heard import HEARD_AT_ONCE, HeardRequest
from hotreload.core.ports import Engine
from hotreload.errors import AnswerNonfinite, EngineLost, NotJudged
from hotreload.features.compare.along_heard import AlongHeard, HeardSums, sums_of, with_heard
from hotreload.features.compare.behaviour import Behaviour
from hotreload.features.compare.comparing import FEWEST_HEARD, BehaviourRejected
from hotreload.threads import in_thread
from hotreload.types import Staged

log = logging.getLogger("hotreload.behaviour")


async def also_by_heard(
    engine: Engine,
    staged: Staged,
    found: Behaviour,
    heard: Sequence[HeardRequest],
    seconds: float,
    *,
    decides: bool = False,
) -> Behaviour:
    """Add to a report what clients' answers tell, as far as there is time for them.

    What fails here leaves the report as it was, but for new weights that make no numbers; where it
    `decides`, NotJudged is raised if there were enough of them and not enough could be compared.
    """
    sums = HeardSums()
    limit, began = asyncio.timeout(seconds), time.monotonic()
    try:
        async with limit:
            for some in batched(heard, HEARD_AT_ONCE):
                sums += await _along(engine, staged, some)
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


async def _along(engine: Engine, staged: Staged, heard: Sequence[HeardRequest]) -> HeardSums:
    """Lead both along the same answers, the live ones twice; none where those make no numbers."""
    questions = [each.question for each in heard]
    try:
        live = await engine.answer_unseen(engine.live, questions)
        # In another order: rows of a batch are no part of what weights expect.
        again = await engine.answer_unseen(engine.live, questions[::-1])
    except AnswerNonfinite:
        return HeardSums()
    try:
        new = await engine.answer_unseen(staged, questions)
    except AnswerNonfinite as bad:
        raise BehaviourRejected(f"asked what a client was answered: {bad}") from bad
    led = [AlongHeard(*each) for each in zip(live, again[::-1], new, strict=True)]
    # Off the loop, for which clients wait.
    return await in_thread(lambda cancel: sums_of(led), leave_as="adding up", is_read=False)
