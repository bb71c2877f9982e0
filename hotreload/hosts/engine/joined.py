"""The other processes that hold one engine with this one, from when they are met until it leaves.

One engine after the other may be built over them.
"""

import asyncio
import math

from hotreload.hosts.engine.together import Meeting
from hotreload.hosts.signed import signed_for_this_life
from hotreload.hosts.upstream.joining import Ranks, join, leave
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

LIFE_SECONDS = 60.0
"""Time for the slowest rank to show that it knows the secret, once all have come."""


class Joined:
    """Made by `join`, on every rank."""

    def __init__(self, ranks: Ranks, store: Store) -> None:
        self.ranks = ranks
        self.store = store
        self.meeting = Meeting(store, ranks)
        self._builds = 0

    @classmethod
    async def join(cls, ranks: Ranks, within: float) -> "Joined":
        """Meet the others; DeviceUnavailable when they do not come within so many seconds.

        Before anything looks for devices. With jax 0.10.2 the process is aborted instead.
        """
        seconds = max(1, math.ceil(within))
        waiting = "the wait for the other ranks"  # which no cancel ends
        await in_thread(
            lambda cancel: join(ranks, seconds),
            discard=lambda joined: leave(),
            leave_as=waiting,
            is_read=False,
        )
        store = Store()
        if ranks.secret is None:
            return cls(ranks, store)
        others = ranks.others
        signed = signed_for_this_life(store, ranks.secret, ranks.own, others, LIFE_SECONDS)
        return cls(ranks, await signed)

    def next_build(self) -> str:
        """Name for the engine that the ranks are about to build; each asks as often."""
        self._builds += 1
        return f"build {self._builds}"

    async def leave(self) -> None:
        """Leave the others; waits a while for them to leave too."""
        await asyncio.to_thread(leave)
