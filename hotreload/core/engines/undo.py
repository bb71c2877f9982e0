"""Puts back the engines that changed, where not all of them could change."""

import logging
from collections.abc import Sequence

from hotreload.core.ledger import PastGeneration
from hotreload.core.progress import AttemptProgress
from hotreload.core.switch import Switch
from hotreload.errors import DrainTimedOut, EngineLost, TryAgain
from hotreload.types import Generation, Staged

log = logging.getLogger("hotreload.rollout")


async def put_back(
    changed: Sequence[Switch],
    unchanged: Sequence[Switch],
    live: Generation,
    progress: AttemptProgress,
) -> None:
    """Flip the changed engines back to the live generation, the last one first; or lose them."""
    tried_on = progress.replica
    for switch in reversed(changed):
        progress.replica = switch.replica.index
        switch.drain_as_long_as_requests_may_run()
        failed = switch.live
        try:
            await _put_back_in_the_end(switch, live, unchanged)
            switch.replica.gate.turn_out(failed)
        except Exception as fault:
            why = f"what was live could not be put back: {type(fault).__name__}: {fault}"
            switch.replica.lose(EngineLost(why))
    progress.replica = tried_on


async def _put_back_in_the_end(
    switch: Switch, live: Generation, unchanged: Sequence[Switch]
) -> None:
    """Put an engine back, and wait again for long requests: they are no reason to lose it."""
    while switch.serves:
        try:
            return await _put_one_back(switch, live, unchanged)
        except DrainTimedOut as late:
            log.warning("rollout.not_put_back_yet", extra={"cause": str(late)})


async def _put_one_back(switch: Switch, live: Generation, unchanged: Sequence[Switch]) -> None:
    place = PastGeneration(live.number, live.revision, live.fingerprint, "", live.since)
    async with switch.keep_earlier(place) as kept:
        if kept is not None:
            await _answer_by(switch, kept, live)
            return
    original = next((each for each in unchanged if each.serves), None)
    if original is None:
        raise TryAgain("no engine that serves has it any more")
    staged = original.live
    async with switch.keep_staged(lambda engine: engine.twin(staged)) as copy, switch.lock_engine():
        await _answer_by(switch, copy, live)


async def _answer_by(switch: Switch, staged: Staged, live: Generation) -> None:
    old = await switch.flip(staged, probe=False)
    await switch.answer_as(live, staged, old)
