"""The same change on all engines of an attempt: in turn, together, or back.

The attempt says what the change is on one engine.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from hotreload.core.engines.rollout import Rollout
from hotreload.core.ledger import PastGeneration
from hotreload.core.switch import MakeWeights, Switch
from hotreload.threads import run_to_end
from hotreload.types import Staged

HoldReady = Callable[[Switch, MakeWeights], AbstractAsyncContextManager[Staged]]
"""Hold new weights beside the live ones of one engine, ready to answer."""
GoLive = Callable[[Switch, Staged], Coroutine[Any, Any, None]]
"""Make held weights live on that engine."""


async def change_in_turn(
    rollout: Rollout, make: MakeWeights, hold: HoldReady, go_live: GoLive
) -> None:
    """Change one engine after the other; the first makes the weights, and the others copy them."""
    for switch in rollout.each():
        with rollout.work_on(switch):  # the others go on without one that is lost
            async with hold(switch, rollout.new_weights(make)) as staged:
                rollout.check_original()
                await go_live(switch, staged)


async def change_together(
    rollout: Rollout, make: MakeWeights, hold: HoldReady, go_live: GoLive
) -> None:
    """Change all engines, with all of them ready before any goes live."""
    async with AsyncExitStack() as all_held:
        for switch in rollout.each():
            with rollout.work_on(switch):
                async with AsyncExitStack() as own:
                    held = hold(switch, rollout.new_weights(make))
                    rollout.ready[switch] = await own.enter_async_context(held)
                    all_held.push_async_callback(rollout.put_away, switch, own.pop_all())
        await _all_go_live(rollout, go_live)
        rollout.end()


async def _all_go_live(rollout: Rollout, go_live: GoLive) -> None:
    """Make all ready engines live; each ends its flip, even if another fails."""

    async def go_on(switch: Switch, staged: Staged) -> None:
        with rollout.work_on(switch):
            await go_live(switch, staged)

    going = (go_on(switch, staged) for switch, staged in rollout.ready.items())
    for failure in await asyncio.gather(*going, return_exceptions=True):
        if isinstance(failure, BaseException):
            raise failure


async def take_back(rollout: Rollout, place: PastGeneration, flip: GoLive, go_live: GoLive) -> bool:
    """Make kept weights, or a copy, live on each engine; return False when no engine keeps them."""
    rollout.begin_with_those_that_keep(place)
    for switch in rollout.each():
        with rollout.work_on(switch):
            if not await _take_one_back(rollout, switch, place, flip, go_live):
                return False
    return True


async def _take_one_back(
    rollout: Rollout, switch: Switch, place: PastGeneration, flip: GoLive, go_live: GoLive
) -> bool:
    await rollout.secure_number(at_any_rate=True)
    async with switch.keep_earlier(place) as kept:
        if kept is not None:
            await run_to_end(flip(switch, kept))
            return True
    if (copy := rollout.copy()) is None:
        return False
    async with switch.keep_staged(copy) as staged:
        rollout.check_original()
        await go_live(switch, staged)
    return True
