"""Background tasks of an engine, as long as it serves.

`close_drained_generations` ends weights that answer no request any more: then they are spare.
`react_to_nonfinite_answers` reports answers withheld because their logits were NaN or infinite,
scrubs the caches, and leaves the weights if the settings say so: finite weights that passed a few
prompts of a probe may overflow on another. `verify_live` and `report_distrust` check the integrity
of the live weights, as memory fails, a fault may overwrite them, and our loader may err.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from hotreload import events, failpoints
from hotreload.core.drain import drain
from hotreload.core.engines.replica import FadingWeights, Replica
from hotreload.core.ports import Engine
from hotreload.core.rules import KeepPrevious
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.types import Generation, Mode, Reason

fading_log = logging.getLogger("hotreload.fading")


async def close_drained_generations(
    replica: Replica[Engine], *, keep: KeepPrevious, publish: events.Publish
) -> NoReturn:
    """End each set of weights that answers no request any more, for ever.

    EngineLost ends the task, with the gate sealed.
    """
    while True:
        await replica.gate.until(lambda: replica.drained_weights is not None)
        async with replica.lock:
            # A rollback may have come first, and have made these weights live again.
            if (over := replica.drained_weights) is not None:
                with replica.seal_when_lost():
                    await _retire(replica, over, publish)
                    await _put_away(replica, over, keep)


async def _retire(replica: Replica[Engine], over: FadingWeights, publish: events.Publish) -> None:
    try:
        await replica.engine.switch.retire(over.weights)
    except Exception as broken:
        raise EngineLost(f"old weights could not be retired: {broken}") from broken
    for generation in over.generations:
        publish(events.GenerationEnded(generation, replica.index))


async def _put_away(replica: Replica[Engine], over: FadingWeights, keep: KeepPrevious) -> None:
    """Keep ended weights for a rollback, if the settings say so; never in the place of younger
    ones."""
    place = replica.fading.index(over)
    for older in replica.fading[:place]:
        older.is_outlived = True
    try:
        await failpoints.reach("ended")
        await replica.put_away(over.weights, KeepPrevious.NONE if over.is_outlived else keep)
    except EngineLost:
        raise
    except Exception:  # a fault of ours must not stop the live weights from serving
        fading_log.exception("fading.not_kept")
        with suppress(Exception):
            await replica.engine.weights.release(over.weights)
    replica.end(over)


nonfinite_log = logging.getLogger("hotreload.nonfinite")

Leave = Callable[[Reason, Generation], Awaitable[str | None]]
"""Roll back from this generation, and refuse it for this reason; return why not, if so."""

NONFINITE_ANSWERS = Reason(
    "nonfinite_answers", "the weights passed the probe, and made NaN of clients' prompts"
)


async def react_to_nonfinite_answers(
    replica: Replica[Engine],
    *,
    publish: events.Publish,
    drain_timeout: Callable[[], float],
    leave: Leave | None,
) -> NoReturn:
    """Act each time answers were withheld, for ever; EngineLost ends the task."""
    seen = 0
    while True:
        first = await replica.engine.answers.wait_for_withheld(beyond=seen)
        live = replica.live
        is_to_blame = not replica.fading  # else it is unknown which weights made them
        publish(events.AnswersWithheld(live, first - seen))
        async with replica.lock:
            is_live = replica.live is live
            # A swap that came first has drained and scrubbed already; a flip has not.
            if is_live or replica.mode is Mode.OVERLAP:
                await _clean(replica, drain_timeout())
            # No request is inside: all answers withheld meanwhile came from the same weights.
            seen = await replica.engine.answers.wait_for_withheld(beyond=first - 1)
        if seen > first:
            publish(events.AnswersWithheld(live, seen - first))
        if is_live and is_to_blame and leave is not None:
            why = await leave(NONFINITE_ANSWERS, live)
            if why is not None:
                about = {"generation": live.number, "cause": why}
                nonfinite_log.warning("nonfinite.not_rolled_back", extra=about)


async def _clean(replica: Replica[Engine], drain_timeout: float) -> None:
    """Overwrite what these weights left in the caches, while no request is inside to read it.

    A request that stays too long is aborted: from now on any answer may be spoiled.
    """
    replica.gate.hold()
    try:
        with replica.seal_when_lost():
            await drain(replica, drain_timeout, abort=True)
            await replica.engine.switch.scrub()
    except DrainTimedOut as late:  # the next withheld answer brings us here again
        nonfinite_log.warning("nonfinite.not_cleaned", extra={"cause": str(late)})
    finally:
        replica.open()


verify_log = logging.getLogger("hotreload.verify")

Checksums = Callable[[], Awaitable[Mapping[str, int]]]
"""Compute the checksum of each live leaf now."""
Distrusted = Callable[[], Awaitable[str]]
"""Wait until our own loader is found to make other weights, and return which."""


async def verify_live(
    replica: Replica[Engine],
    *,
    checksums: Checksums,
    every: float,
    publish: events.Publish,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Compare the live leaves with their checksums of the flip, for ever; EngineLost ends this.

    The task waits `every` seconds between two looks, and then up to as long for an idle moment.
    """
    while True:
        await sleep(every)
        try:
            await replica.gate.wait_until_empty(every)
        except DrainTimedOut:  # an engine may never be idle
            verify_log.debug("verify.never_idle")
        # A swap waits for the lock: the checksums are those of the live weights to the end.
        async with replica.lock:
            with replica.seal_when_lost():
                await _verify(replica, checksums, publish)


async def _verify(replica: Replica[Engine], checksums: Checksums, publish: events.Publish) -> None:
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
        publish(events.LiveDrifted(live, drifted, replica.index))
    else:
        publish(events.LiveVerified(live, replica.index))


async def report_distrust(
    replica: Replica[Engine], *, distrusted: Distrusted, publish: events.Publish
) -> NoReturn:
    """Publish once that our loader makes other weights than upstream's; that stays so."""
    publish(events.LoaderDistrusted(await distrusted(), replica.index))
    await asyncio.Future()
    raise AssertionError("a future that is never set has ended")
