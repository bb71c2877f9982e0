"""Each rank says again and again that it lives, and looks whether the others do.

Between two requests nothing else would show that a process is gone. JAX looks too, and then ends
this process without a word of ours: so we look more often. The end of rank 0 shows by itself: the
store is gone with it.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NoReturn

from hotreload.errors import EngineLost, RankLeft
from hotreload.hosts.bounds import NotBelieved, number, words
from hotreload.hosts.upstream.store import Store
from hotreload.threads import in_thread

BEAT_SECONDS = 1.0
SILENT_LOOKS = 30
"""After so many looks at which a rank had nothing new to say it counts as gone."""
AT_ONCE = 0.01
SAYS_LEAVES, SAYS_LOST = "leaves: ", "has lost its part: "
"""Words with which a rank begins to say why it goes, in order or not; no number does."""
LONGEST_GOODBYE = 2000
"""Characters of why it goes."""


class Beats:
    """Of one rank."""

    def __init__(self, store: Store, own: int, others: Sequence[int]) -> None:
        self.every = BEAT_SECONDS
        self.silent_looks = SILENT_LOOKS
        self._store = store
        self._own = own
        self._heard: dict[int, int] = dict.fromkeys(others, 0)
        self._silent = dict.fromkeys(others, 0)
        """At how many looks in a row it said nothing new: time in which we starved is none."""
        self._new_at = dict.fromkeys(others, time.monotonic())

    @property
    def silences(self) -> dict[int, float]:
        """Seconds since each other rank last said something new; any thread may ask."""
        now = time.monotonic()
        return {rank: now - at for rank, at in self._new_at.items()}

    async def run(self) -> NoReturn:
        """Say and look, until EngineLost names a rank that is silent or leaves."""
        for beat in count(1):
            if self._list_gone():
                break
            await in_thread(partial(self._say_and_look, str(beat)))
            await asyncio.sleep(self.every)
        named = " and ".join(f"rank {rank}" for rank in self._list_gone())
        silent = self.silent_looks * self.every
        raise EngineLost(f"{named} has not been heard of for {silent:g} s")

    async def leave(self, why: str) -> None:
        """Send the others that this rank leaves, after `run` has ended: the engine ends with it."""
        await in_thread(lambda cancel: self._store.put(_key(self._own), SAYS_LEAVES + why))

    async def lose(self, why: str) -> None:
        """Send the others that this rank's part, and with it the engine, is lost."""
        await in_thread(lambda cancel: self._store.put(_key(self._own), SAYS_LOST + why))

    def _say_and_look(self, news: str, cancel: threading.Event) -> None:
        self._store.put(_key(self._own), news)
        self._look()

    def _look(self) -> None:
        for rank, before in list(self._heard.items()):
            said = self._store.get(_key(rank), AT_ONCE) or ""
            if said.startswith(SAYS_LEAVES):
                raise RankLeft(f"rank {rank} {_in_words(said)}")
            if said.startswith(SAYS_LOST):
                raise EngineLost(f"rank {rank} {_in_words(said)}")
            now = max(before, _number(said))  # what it said before can be said again by anybody
            self._silent[rank] = self._silent[rank] + 1 if now == before else 0
            if now != before:
                self._new_at[rank] = time.monotonic()
            self._heard[rank] = now

    def _list_gone(self) -> list[int]:
        return [rank for rank, looks in self._silent.items() if looks >= self.silent_looks]


def _key(rank: int) -> str:
    return f"hotreload/beat/{rank}"


def _number(said: str) -> int:
    try:
        return number(said)
    except NotBelieved:
        return 0


def _in_words(said: str) -> str:
    return words(said[:LONGEST_GOODBYE])
