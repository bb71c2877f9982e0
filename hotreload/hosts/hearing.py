"""Waits for what another rank says; what no rank would say like this is not there."""

import asyncio
import math
import time
from collections.abc import Callable

from hotreload.hosts.bounds import NotBelieved
from hotreload.hosts.doubts import Doubts
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

LOOK_SECONDS = 0.5
"""Time that a thread waits in the store without a break: a cancel waits for its end."""


class Ear:
    """Of one rank."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._doubts = Doubts()

    async def hear[T](
        self, key: str, read: Callable[[str], T], within: float = math.inf
    ) -> T | None:
        """Wait for what `read` can believe under the key; None if nothing is there by then."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            text = await in_thread(lambda cancel: self._store.get(key, min(left, LOOK_SECONDS)))
            if text is None:
                continue
            try:
                return read(text)
            except NotBelieved as why:
                self._doubts.tell(key, str(why))
                await asyncio.sleep(min(left, LOOK_SECONDS))  # it may be written over
        return None
