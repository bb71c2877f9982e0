"""Doubt of the probe: a start tells of weights that fail it though they were live before.

They are what they were, and so is what they answer with. So they answer, and everybody is told,
until the probes are mended or other weights are live.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NoReturn

from hotreload.core.ledger import PastGeneration
from hotreload.core.probing import verdict_of
from hotreload.core.replica import Replica
from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.events import AttemptFinished, Event, Publish, SettingsRead
from hotreload.json_fields import iso
from hotreload.life.running import RunningEngine
from hotreload.troubles import PROBE_DOUBTED, Trouble
from hotreload.types import Attempt, Outcome

TODO = (
    "correct that [[probe]] and send SIGHUP (systemctl reload hotreload), which asks it again; if "
    "the answer is bad indeed, look at the engine, its version and the device"
)


class Doubt:
    """Sees every event; stands as long as the doubted generation answers and the probes fail."""

    def __init__(self, publish: Publish) -> None:
        self._trouble = Trouble(PROBE_DOUBTED, publish)
        self._of: PastGeneration | None = None
        self._asked = asyncio.Event()

    def of(self, live: PastGeneration, verdict: CheckpointRejected) -> None:
        """These weights answer, in spite of what the probes say."""
        self._of = live
        words = (
            f"{verdict}; generation {live.number}, {live.revision}, live since {iso(live.since)}, "
            "answers all the same: neither its weights nor the engine have changed"
        )
        self._trouble.now(words, TODO)

    def observe(self, event: Event) -> None:
        """Ask again when the probes are others, and no more when other weights are live."""
        match event:
            case SettingsRead(changed) if "[[probe]]" in changed:
                self._asked.set()
            case AttemptFinished(attempt) if self._is_left(attempt):
                self._end()

    def _is_left(self, attempt: Attempt) -> bool:
        is_live = attempt.outcome is Outcome.LIVE
        return is_live and self._of is not None and attempt.generation != self._of.number

    def _end(self) -> None:
        self._of = None
        self._trouble.now(None)

    async def run(
        self, replicas: Iterable[Replica[RunningEngine]], within: Callable[[], float]
    ) -> NoReturn:
        """Ask the live weights again each time that the probes are others, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            for replica in list(replicas)[:1]:  # all hold the same weights
                await self._ask_again(replica.engine, within())

    async def _ask_again(self, engine: RunningEngine, within: float) -> None:
        doubted = self._of
        if doubted is None:
            return
        try:
            verdict = await verdict_of(engine, within, "[reload] probe_timeout")
        except (EngineLost, TryAgain):
            return  # others look after the engine
        if self._of is not doubted:
            return  # others went live meanwhile
        if verdict is None:
            self._end()
        else:
            self.of(doubted, verdict)
