"""Tells, while something long goes on, how far it is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hotreload.events import Progress, Publish
from hotreload.types import HowFar, Phase, Revision

TELL_SECONDS = 0.25
"""How much time lies between two looks; what is as it was is not told again."""


@asynccontextmanager
async def telling_how_far(
    look: Callable[[], HowFar | None],
    revision: Revision,
    publish: Publish,
    phase: Phase = Phase.STAGING,
) -> AsyncIterator[None]:
    """Publish what `look` returns a few times a second, until the end of the block."""
    going_on = _go_on(look, revision, publish, phase)
    telling = asyncio.create_task(going_on, name=f"tell how far {phase} is")
    try:
        yield
    finally:
        telling.cancel()


async def _go_on(
    look: Callable[[], HowFar | None], revision: Revision, publish: Publish, phase: Phase
) -> None:
    told: HowFar | None = None
    while True:
        now = look()
        if now is not None and now != told:
            publish(Progress(revision, phase, now.done, now.of))
        told = now
        await asyncio.sleep(TELL_SECONDS)
