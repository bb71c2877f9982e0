"""Work that lasts as long as an engine serves: weights end, are verified, and leave after NaN.

`close_drained_generations` ends weights that answer no request any more: then they are spare.
`react_to_nonfinite_answers` tells of answers that are withheld because their logits were NaN or
infinite, has the caches scrubbed, and the weights left if the operator decided so: a probe asks a
few prompts, and finite weights that passed it may still overflow on another. `verify_live` and
`tell_of_distrust` look after the integrity of what is live: memory fails, a fault may write where
it should not, and a loader of ours may err.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from hotreload import failpoints
from hotreload.core.drain import drain
from hotreload.core.engines.replica import FadingWeights, Replica
from hotreload.core.ports import Engine
from hotreload.core.progress import Reach
from hotreload.core.rules import KeepPrevious
from hotreload.errors import BadRequest, Busy, DrainTimedOut, EngineLost, NotServing, TryAgain
from hotreload.events import (
    AnswersWithheld,
    GenerationEnded,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    Publish,
)
from hotreload.types import Generation, Mode, Reason

fading_log = logging.getLogger("hotreload.fading")


async def close_drained_generations(
    replica: Replica[Engine],
    *,
    keep: KeepPrevious,
    publish: Publish,
    reach: Reach = failpoints.reach,
) -> NoReturn:
    """End each set of weights that answers no request any more, for ever.

    EngineLost ends it, with the gate sealed.
    """
    while True:
        await replica.gate.until(lambda: replica.drained_weights is not None)
        async with replica.alone:
            # A rollback may have come first, and have made these weights live again.
            if (over := replica.drained_weights) is not None:
                with replica.seal_when_lost():
                    await _retire(replica, over, publish)
                    await _put_away(replica, over, keep, reach)


async def _retire(replica: Replica[Engine], over: FadingWeights, publish: Publish) -> None:
    try:
        await replica.engine.retire(over.weights)
    except Exception as broken:
        raise EngineLost(f"old weights could not be retired: {broken}") from broken
    for generation in over.generations:
        publish(GenerationEnded(generation, replica.index))


async def _put_away(
    replica: Replica[Engine], over: FadingWeights, keep: KeepPrevious, reach: Reach
) -> None:
    """Keep them for a rollback, as the operator decided; never instead of younger ones."""
    place = replica.fading.index(over)
    for older in replica.fading[:place]:
        older.is_outlived = True
    try:
        await reach("ended")
        await replica.put_away(over.weights, KeepPrevious.NONE if over.is_outlived else keep)
    except EngineLost:
        raise
    except Exception:  # a fault of ours must not stop the live weights from serving
        fading_log.exception("fading.not_kept")
        with suppress(Exception):
            await replica.engine.release(over.weights)
    replica.end(over)


nonfinite_log = logging.getLogger("hotreload.nonfinite")

Leave = Callable[[Reason, Generation], Awaitable[None]]
"""Leave the generation that made them, and refuse it for this reason."""

NONFINITE_ANSWERS = Reason(
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
            await _leave(leave, live)


async def _clean(replica: Replica[Engine], drain_timeout: float) -> None:
    """Overwrite what these weights left in the caches, while nobody is inside to read it.

    Who stays too long is aborted: from now on any answer may be spoiled.
    """
    replica.gate.hold()
    try:
        with replica.seal_when_lost():
            await drain(replica, drain_timeout, abort=True)
            await replica.engine.scrub()
    except DrainTimedOut as late:  # the next withheld answer brings us here again
        nonfinite_log.warning("nonfinite.not_cleaned", extra={"cause": str(late)})
    finally:
        replica.open()


async def _leave(leave: Leave, live: Generation) -> None:
    try:
        await leave(NONFINITE_ANSWERS, live)
    except (BadRequest, Busy, NotServing, TryAgain) as reason:
        nonfinite_log.warning(
            "nonfinite.not_rolled_back",
            extra={"generation": live.number, "cause": str(reason)},
        )


verify_log = logging.getLogger("hotreload.verify")

Checksums = Callable[[], Awaitable[Mapping[str, int]]]
"""Compute the checksum of each live leaf now."""
Distrusted = Callable[[], Awaitable[str]]
"""Wait until our own loader was found to make other weights, and say which."""


async def verify_live(
    replica: Replica[Engine],
    *,
    checksums: Checksums,
    every: float,
    publish: Publish,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Compare the live leaves with what went live, for ever; EngineLost ends it.

    It waits `every` seconds between two looks, and then as long again for an idle moment.
    """
    while True:
        await sleep(every)
        await _until_idle(replica, every)
        # So that what is computed is what is live to its end: a swap waits for it.
        async with replica.alone:
            with replica.seal_when_lost():
                await _verify(replica, checksums, publish)


async def _until_idle(replica: Replica[Engine], within: float) -> None:
    """Wait until nobody is answered, but not for ever: an engine may never be idle."""
    try:
        await replica.gate.wait_until_empty(within)
    except DrainTimedOut:
        verify_log.debug("verify.never_idle")


async def _verify(replica: Replica[Engine], checksums: Checksums, publish: Publish) -> None:
    live = replica.live
    try:
        now = await checksums()
    except EngineLost:
        raise
    except Exception:  # a fault of ours must not stop the live weights from serving
        verify_log.exception("verify.not_done")
        return
    leaves = sorted(now.keys() | live.leaves.keys())
    drifted = tuple(leaf for leaf in leaves if now.get(leaf) != live.leaves.get(leaf))
    if drifted:
        publish(LiveDrifted(live, drifted, replica.index))
    else:
        publish(LiveVerified(live, replica.index))


async def report_distrust(
    replica: Replica[Engine], *, distrusted: Distrusted, publish: Publish
) -> NoReturn:
    """Tell once, as it stays so, that our loader makes other weights here than upstream's."""
    publish(LoaderDistrusted(await distrusted(), replica.index))
    await asyncio.Future()
    raise AssertionError("nobody ends what waits for ever")
