"""The way back of engines that have changed, where an attempt ends before all of them have.

It is no attempt of its own: it asks no probe, and no wish ends it.
"""

import logging
from collections.abc import Sequence

from hotreload.core.ledger import PastGeneration
from hotreload.core.switch import Switch
from hotreload.errors import DrainTimedOut, EngineLost, TryAgain
from hotreload.types import Generation

log = logging.getLogger("hotreload.rollout")


async def put_back(
    changed: Sequence[Switch], live: Generation, *, unchanged: Sequence[Switch]
) -> None:
    """Have those that changed answer by what is live, the last one first; or count them as lost."""
    for switch in reversed(changed):
        switch.insist()
        try:
            await _restored_in_the_end(switch, live, unchanged)
        except Exception as fault:
            why = f"what was live could not be put back: {type(fault).__name__}: {fault}"
            switch.replica.lose(EngineLost(why))


async def _restored_in_the_end(
    switch: Switch, live: Generation, unchanged: Sequence[Switch]
) -> None:
    """A request that runs long is no reason to lose an engine: it is waited for again."""
    while switch.serves:
        try:
            return await _restored(switch, live, unchanged)
        except DrainTimedOut as late:
            log.warning("rollout.not_put_back_yet", extra={"cause": str(late)})


async def _restored(switch: Switch, live: Generation, unchanged: Sequence[Switch]) -> None:
    place = PastGeneration(live.number, live.revision, live.fingerprint, "", live.since)
    if await switch.back(place, asked=False):
        return
    original = next((each for each in unchanged if each.serves), None)
    if original is None:
        raise TryAgain("no engine that serves has it any more")
    async with switch.ready(switch.copy(original.live), asked=False) as ready:
        await ready.go()
