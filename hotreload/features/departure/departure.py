"""Leaves a machine in order: nothing new begins, short answers end, long ones are cut in time."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hotreload.core.attempt_records import Attempts
from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import DrainTimedOut, NotServing
from hotreload.features.departure.events import DepartureBegan, DepartureOver

log = logging.getLogger("hotreload.departure")

CUT_AGAIN_SECONDS = 1.0
"""Seconds to the next abort: one misses requests between the gate and the engine."""

Notices = Callable[[], AsyncGenerator[str | None]]
"""Yield why the machine will be taken away, or None, as often as one looks."""


class Departure(Admission):
    """Refuses requests and puts off attempts as long as a notice stands."""

    def __init__(
        self,
        attempts: Attempts,
        entrance: Entrance[Any],
        *,
        engines: Callable[[], Sequence[Any]],
        notices: Mapping[str, Notices],
        within: float,
    ) -> None:
        """`within` has the seconds that answers may take from the notice on."""
        self._attempts = attempts
        self._entrance = entrance
        self._engines = engines
        self._notices = notices
        self._within = within
        self._said: dict[str, str | None] = {}
        """The last word of each that gives notices."""
        self._why: str | None = None
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow all notices, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, notices in self._notices.items():
                    tasks.create_task(self._follow(name, notices), name=f"notices: {name}")
        finally:
            self._end_waiting()

    async def _follow(self, name: str, notices: Notices) -> None:
        async for why in notices():
            self._said[name] = why
            self._change(next(filter(None, self._said.values()), None))

    def _change(self, why: str | None) -> None:
        """Go by the notice that stands, if any; only its coming and its end change anything."""
        before = self._why
        if (before is None) == (why is None):
            return
        self._why = why
        self._attempts.put_off(f"this machine will be taken away: {why}" if why else None)
        if why is not None:
            self._attempts.publish(DepartureBegan(why, self._within))
            self._ending = asyncio.create_task(self._end_answers(), name="the last answers")
        elif before is not None:
            self._end_waiting()
            self._attempts.publish(DepartureOver(before))
        self._entrance.look_again()

    async def _end_answers(self) -> None:
        """Let answers end by themselves, and cut short what takes longer."""
        patience = self._within
        while True:
            try:
                return await self._entrance.wait_until_empty(patience)
            except DrainTimedOut as late:
                log.warning("departure.cut_short", extra={"cause": str(late)})
            for engine in self._engines():
                await engine.answers.abort()
            patience = CUT_AGAIN_SECONDS

    def _end_waiting(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = None

    def holds(self, asked: Conditions) -> bool:
        """Have no request in while a notice stands."""
        return self._why is not None

    @contextmanager
    def count_waiting(self, asked: Conditions) -> Iterator[None]:
        """Raise NotServing: another machine can answer it."""
        words = f"this machine will be taken away: {self._why}"
        raise NotServing(words, code="leaving", retry_after=1)
        yield  # a generator, as it must be
