"""Has an engine built in a thread, which a stop does not wait for."""

from collections.abc import Callable

from hotreload.engine.upstream import parts
from hotreload.engine.upstream.parts import Parts
from hotreload.threads import in_thread

START = "the engine's start"


async def built(make: Callable[[], Parts]) -> Parts:
    """Build by `make`; a cancel leaves that behind, and what it makes is freed.

    It may compile for minutes or wait for another rank, and no stop is to wait for that.
    """
    return await in_thread(
        lambda cancel: make(), discard=parts.discard, leave_as=START, is_read=False
    )
