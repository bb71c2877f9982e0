"""Reaction to answers that are withheld because their logits were NaN or infinite: it is
published, the caches are scrubbed, and the weights are left if the operator decided so.

A probe asks a few prompts; finite weights that passed it may still overflow on another.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from hotreload.core.drain import drain
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.errors import BadRequest, Busy, DrainTimedOut, NotServing, TryAgain
from hotreload.events import AnswersWithheld, Publish
from hotreload.types import Generation, Mode, Reason

log = logging.getLogger("hotreload.nonfinite")

Leave = Callable[[Reason, Generation], Awaitable[None]]
"""Leave the generation that made them, and refuse it for this reason."""

REASON = Reason(
    "nonfinite_answers", "the weights passed the probe, and made NaN of clients' prompts"
)


async def react_to_nonfinite_answers(
    replica: Replica[Engine],
    *,
    publish: Publish,
    drain_timeout: Callable[[], float],
    leave: Leave | None,
) -> NoReturn:
    """Act each time answers were withheld, for ever; EngineLost ends it."""
    seen = 0
    while True:
        first = await replica.engine.withheld(beyond=seen)
        live = replica.live
        is_to_blame = not replica.fading  # else nobody knows which weights made them
        publish(AnswersWithheld(live, first - seen))
        async with replica.alone:
            is_live = replica.live is live
            # A swap that came first has drained and scrubbed already; a flip has not.
            if is_live or replica.mode is Mode.OVERLAP:
                await _clean(replica, drain_timeout())
            # Nobody is inside, so all answers withheld meanwhile came from the same weights.
            seen = await replica.engine.withheld(beyond=first - 1)
        if seen > first:
            publish(AnswersWithheld(live, seen - first))
        if is_live and is_to_blame and leave is not None:
            await _left(leave, live)


async def _clean(replica: Replica[Engine], drain_timeout: float) -> None:
    """Overwrite what these weights left in the caches, while nobody is inside to read it.

    Who stays too long is aborted: from now on any answer may be spoiled.
    """
    replica.gate.hold()
    try:
        with replica.sealed_when_lost():
            await drain(replica, drain_timeout, abort=True)
            await replica.engine.scrub()
    except DrainTimedOut as late:  # the next withheld answer brings us here again
        log.warning("nonfinite.not_cleaned", extra={"cause": str(late)})
    finally:
        replica.open()


async def _left(leave: Leave, live: Generation) -> None:
    try:
        await leave(REASON, live)
    except (BadRequest, Busy, NotServing, TryAgain) as reason:
        log.warning(
            "nonfinite.not_rolled_back",
            extra={"generation": live.number, "cause": str(reason)},
        )
