"""Reads messages of other ranks; a message that no rank would write counts as missing.

The first such message for each key is logged.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from hotreload.hosts.bounds import NotBelieved
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.ranks")

HEARING_SECONDS = 0.5
"""Time that a thread waits in the store without a break: a cancel waits for its end."""
MOST_DOUBTS = 100
"""The most keys that are logged: an attacker may write ever new ones."""
DOUBT_TODO = (
    "see who reaches the port of [engine] dist_init_addr, and whether all hosts have the same "
    "[engine] join_secret_file: `hotreload doctor --meet` compares them"
)


class Doubts:
    """Logs that a rank does not believe a value in the store."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, key: str, why: str) -> None:
        """Say it in the log, unless it was said of this key, or of too many."""
        if key not in self._told and len(self._told) < MOST_DOUBTS:
            self._told.add(key)
            log.error("ranks.not_believed", extra={"key": key, "why": why, "todo": DOUBT_TODO})


class Ear:
    """Waits for what the other ranks say to this one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._doubts = Doubts()

    async def hear[T](
        self, key: str, read: Callable[[str], T], within: float = math.inf
    ) -> T | None:
        """Wait for what `read` can believe under the key; None if nothing is there by then."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            text = await in_thread(lambda cancel: self._store.get(key, min(left, HEARING_SECONDS)))
            if text is None:
                continue
            try:
                return read(text)
            except NotBelieved as why:
                self._doubts.tell(key, str(why))
                await asyncio.sleep(min(left, HEARING_SECONDS))  # it may be written over
        return None
