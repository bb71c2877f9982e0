"""Has an engine begin that was built, or takes apart what there is of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from hotreload.engine.upstream import build
from hotreload.engine.upstream.watch import EngineWatch
from hotreload.engine.weights.twins import Original
from hotreload.threads import in_thread, uninterrupted
from hotreload.types import Checkpoint, Revision


class Begins(Protocol):
    """An engine that took over what was built, and does not run yet."""

    async def begin(self, checkpoint: Checkpoint | None) -> None:
        """Do the part of the start that belongs on the event loop."""
        ...

    async def close(self) -> None:
        """End all of it, also a half of it."""
        ...


START = "the engine's start"


async def built(make: Callable[[], build.Parts]) -> build.Parts:
    """What `make` builds, in a thread; a cancel leaves that behind, and what it makes is freed.

    It may compile for minutes or wait for another rank, and no stop is to wait for that.
    """
    return await in_thread(
        lambda cancel: make(), discard=build.discard, leave_as=START, is_read=False
    )


async def running[E: Begins](
    make: Callable[..., E],
    parts: build.Parts,
    watch: EngineWatch,
    first: AbstractAsyncContextManager[Revision | Original],
    checkpoint: Checkpoint | None,
) -> E:
    """The engine that `make` makes of what was built; nothing of it is left if it does not begin.

    Our own loader is compared with upstream's on a checkpoint that holds the same weights.
    """
    try:
        async with first as given:
            # If the start is cancelled, what was made here is taken apart with the parts.
            engine = await in_thread(lambda cancel: make(first=given))
    except BaseException:
        watch.close()
        await uninterrupted(build.taken_apart(parts))
        raise
    try:
        await engine.begin(checkpoint)
    except BaseException:
        await uninterrupted(engine.close())
        raise
    return engine
