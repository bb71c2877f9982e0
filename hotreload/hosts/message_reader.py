"""Reads messages of other ranks; an invalid message counts as missing.

The first invalid message under each key is logged.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from hotreload.hosts.bounds import InvalidMessage
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.ranks")

READ_SECONDS = 0.5
"""The longest wait of a thread in the store; a cancel takes effect after it."""
MOST_DOUBTS = 100
"""The most keys that are logged: an attacker may write ever new keys."""
DOUBT_TODO = (
    "see who reaches the port of [engine] dist_init_addr, and whether all hosts have the same "
    "[engine] join_secret_file: `hotreload doctor --meet` compares them"
)


class Doubts:
    """Logs values of the store that this rank does not believe, each key once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log_once(self, key: str, why: str) -> None:
        """Log the reason, unless this key was logged, or too many were."""
        if key not in self._logged and len(self._logged) < MOST_DOUBTS:
            self._logged.add(key)
            log.error("ranks.not_believed", extra={"key": key, "why": why, "todo": DOUBT_TODO})


class MessageReader:
    """Waits for messages of the other ranks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._doubts = Doubts()

    async def receive[T](
        self, key: str, read: Callable[[str], T], within: float = math.inf
    ) -> T | None:
        """Wait for a value under the key that `read` accepts, and return it; None if none comes."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            text = await in_thread(lambda cancel: self._store.get(key, min(left, READ_SECONDS)))
            if text is None:
                continue
            try:
                return read(text)
            except InvalidMessage as why:
                self._doubts.log_once(key, str(why))
                await asyncio.sleep(min(left, READ_SECONDS))  # a rank may overwrite the value
        return None
