"""Each rank says again and again that it lives, and looks whether the others do.

Between two requests nothing else would show that a process is gone. JAX looks too, and then ends
this process without a word of ours: so we look more often.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from hotreload.errors import EngineLost
from hotreload.ranks.store import Store
from hotreload.threads import in_thread

EVERY_SECONDS = 1.0
SILENT_LOOKS = 30
"""After so many looks at which a rank had nothing new to say it counts as gone."""
AT_ONCE = 0.01


class Beats:
    """Of one rank; `lose` is told why, once a rank is silent or the store is gone."""

    def __init__(
        self, store: Store, own: int, others: Sequence[int], lose: Callable[[str], None]
    ) -> None:
        self.every = EVERY_SECONDS
        self.silent_looks = SILENT_LOOKS
        self._store = store
        self._own = own
        self._lose = lose
        self._heard: dict[int, str | None] = dict.fromkeys(others)
        self._silent = dict.fromkeys(others, 0)
        """At how many looks in a row it said nothing new: time in which we starved is none."""

    async def run(self) -> None:
        """Say and look, until a rank is gone."""
        try:
            number = 0
            while not self._gone():
                number += 1
                say = partial(self._say_and_look, str(number))
                await in_thread(say)
                await asyncio.sleep(self.every)
        except EngineLost as lost:
            self._lose(str(lost))
            return
        named = " and ".join(f"rank {rank}" for rank in self._gone())
        self._lose(f"{named} has not been heard of for {self.silent_looks * self.every:g} s")

    def _say_and_look(self, news: str, cancel: threading.Event) -> None:
        self._store.put(_key(self._own), news)
        self._look()

    def _look(self) -> None:
        for rank, before in list(self._heard.items()):
            now = self._store.get(_key(rank), AT_ONCE)
            self._silent[rank] = self._silent[rank] + 1 if now == before else 0
            self._heard[rank] = now

    def _gone(self) -> list[int]:
        return [rank for rank, looks in self._silent.items() if looks >= self.silent_looks]


def _key(rank: int) -> str:
    return f"hotreload/beat/{rank}"
