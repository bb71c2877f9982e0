"""Looks after the integrity of what is live: that it still is what went live, and was loaded well.

Memory fails, and a fault may write where it should not; a loader of ours may err.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import LiveDrifted, LiveVerified, LoaderDistrusted, Publish

log = logging.getLogger("hotreload.verify")

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
            with replica.sealed_when_lost():
                await _verify(replica, checksums, publish)


async def _until_idle(replica: Replica[Engine], within: float) -> None:
    """Wait until nobody is answered, but not for ever: an engine may never be idle."""
    try:
        await replica.gate.drained(within)
    except DrainTimedOut:
        log.debug("verify.never_idle")


async def _verify(replica: Replica[Engine], checksums: Checksums, publish: Publish) -> None:
    live = replica.live
    try:
        now = await checksums()
    except EngineLost:
        raise
    except Exception:  # a fault of ours must not stop the live weights from serving
        log.exception("verify.not_done")
        return
    leaves = sorted(now.keys() | live.leaves.keys())
    drifted = tuple(leaf for leaf in leaves if now.get(leaf) != live.leaves.get(leaf))
    if drifted:
        publish(LiveDrifted(live, drifted, replica.index))
    else:
        publish(LiveVerified(live, replica.index))


async def tell_of_distrust(
    replica: Replica[Engine], *, distrusted: Distrusted, publish: Publish
) -> NoReturn:
    """Tell once, as it stays so, that our loader makes other weights here than upstream's."""
    publish(LoaderDistrusted(await distrusted(), replica.index))
    await asyncio.Future()
    raise AssertionError("nobody ends what waits for ever")
