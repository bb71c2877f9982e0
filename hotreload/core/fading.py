"""The end of an old generation: when all who began under it are answered, its weights are spare."""

import logging
from contextlib import suppress
from typing import NoReturn

from hotreload import failpoints
from hotreload.core.ports import Engine
from hotreload.core.progress import Reach
from hotreload.core.replica import Fading, Replica
from hotreload.core.rules import KeepPrevious
from hotreload.errors import EngineLost
from hotreload.events import GenerationEnded, Publish

log = logging.getLogger("hotreload.fading")


async def close_drained_generations(
    replica: Replica[Engine],
    *,
    keep: KeepPrevious,
    publish: Publish,
    reach: Reach = failpoints.reach,
) -> NoReturn:
    """End each set of weights that nobody is answered by any more, for ever.

    EngineLost ends it, with the gate sealed.
    """
    while True:
        await replica.gate.until(lambda: replica.over is not None)
        async with replica.alone:
            # A rollback may have come first, and have made these weights live again.
            if (over := replica.over) is not None:
                with replica.sealed_when_lost():
                    await _retired(replica, over, publish)
                    await _put_away(replica, over, keep, reach)


async def _retired(replica: Replica[Engine], over: Fading, publish: Publish) -> None:
    try:
        await replica.engine.retire(over.weights)
    except Exception as broken:
        raise EngineLost(f"old weights could not be retired: {broken}") from broken
    for generation in over.generations:
        publish(GenerationEnded(generation, replica.index))


async def _put_away(
    replica: Replica[Engine], over: Fading, keep: KeepPrevious, reach: Reach
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
        log.exception("fading.not_kept")
        with suppress(Exception):
            await replica.engine.release(over.weights)
    replica.end(over)
