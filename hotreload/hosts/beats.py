"""Heartbeats: each rank writes a number every second, and reads those of the others.

Between two requests nothing else shows that a process is gone. JAX has its own heartbeats, and
ends this process without any log line of ours: hotreload must notice earlier. The end of rank 0
shows without heartbeats, since the store ends with it.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NoReturn

from hotreload.errors import EngineLost, RankLeft
from hotreload.hosts.messages import InvalidMessage, parse_number, parse_text
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

BEAT_SECONDS = 1.0
SILENT_LOOKS = 30
"""The number of reads in a row without a new heartbeat after which a rank counts as gone."""
AT_ONCE = 0.01
LEAVES_PREFIX, LOST_PREFIX = "leaves: ", "has lost its part: "
"""The beginning of a rank's last message, before its reason: it ends in order, or has failed."""
LONGEST_GOODBYE = 2000
"""The most characters of that reason."""


class Beats:
    """The heartbeats that one rank sends, and those that it reads."""

    def __init__(self, store: Store, own: int, others: Sequence[int]) -> None:
        self.every = BEAT_SECONDS
        self.silent_looks = SILENT_LOOKS
        self._store = store
        self._own = own
        self._last_beats: dict[int, int] = dict.fromkeys(others, 0)
        self._silent = dict.fromkeys(others, 0)
        """The reads in a row without a new heartbeat: reads, since a starved process reads late."""
        self._new_at = dict.fromkeys(others, time.monotonic())

    @property
    def silences(self) -> dict[int, float]:
        """Seconds since the last new heartbeat of each other rank; any thread may read it."""
        now = time.monotonic()
        return {rank: now - at for rank, at in self._new_at.items()}

    async def run(self) -> NoReturn:
        """Send and read heartbeats, until EngineLost names a rank that is silent or leaves."""
        for beat in count(1):
            if self._list_gone():
                break
            await in_thread(partial(self._beat_and_read, str(beat)))
            await asyncio.sleep(self.every)
        named = " and ".join(f"rank {rank}" for rank in self._list_gone())
        silent = self.silent_looks * self.every
        raise EngineLost(f"{named} has not been heard of for {silent:g} s")

    async def leave(self, why: str) -> None:
        """Report to the others that this rank leaves, and the engine ends; call it after `run`."""
        await in_thread(lambda cancel: self._store.put(_key(self._own), LEAVES_PREFIX + why))

    async def lose(self, why: str) -> None:
        """Report to the others that this rank's part, and with it the engine, is lost."""
        await in_thread(lambda cancel: self._store.put(_key(self._own), LOST_PREFIX + why))

    def _beat_and_read(self, news: str, cancel: threading.Event) -> None:
        self._store.put(_key(self._own), news)
        self._read_others()

    def _read_others(self) -> None:
        for rank, before in list(self._last_beats.items()):
            message = self._store.get(_key(rank), AT_ONCE) or ""
            if message.startswith(LEAVES_PREFIX):
                raise RankLeft(f"rank {rank} {_in_words(message)}")
            if message.startswith(LOST_PREFIX):
                raise EngineLost(f"rank {rank} {_in_words(message)}")
            now = max(before, _number(message))  # anything may write an old number again
            self._silent[rank] = self._silent[rank] + 1 if now == before else 0
            if now != before:
                self._new_at[rank] = time.monotonic()
            self._last_beats[rank] = now

    def _list_gone(self) -> list[int]:
        return [rank for rank, looks in self._silent.items() if looks >= self.silent_looks]


def _key(rank: int) -> str:
    return f"hotreload/beat/{rank}"


def _number(message: str) -> int:
    try:
        return parse_number(message)
    except InvalidMessage:
        return 0


def _in_words(message: str) -> str:
    return parse_text(message[:LONGEST_GOODBYE])
