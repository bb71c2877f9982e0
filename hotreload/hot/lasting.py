"""What runs as long as an engine that a program holds, and what is told of it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, NoReturn

from hotreload.core.lasting import (
    close_drained_generations,
    react_to_nonfinite_answers,
    tell_of_distrust,
)
from hotreload.core.replica import Replica
from hotreload.engine.answering.answers import all_ended
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import EngineLost
from hotreload.events import AnswersWithheld, Event, GateChanged, LoaderDistrusted, Publish
from hotreload.hot.terms import HotTerms

log = logging.getLogger("hotreload.hot")


class Lasting:
    """Tasks beside the answers; the engine is lost with any of them."""

    def __init__(self, replica: Replica[SglangEngine]) -> None:
        self._replica = replica
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, terms: HotTerms, publish: Publish) -> None:
        """Begin all there is to do until `end`."""
        replica, engine = self._replica, self._replica.engine
        keep = terms.rules.keep_previous
        works: list[Coroutine[Any, Any, NoReturn]] = [
            engine.died(),
            close_drained_generations(replica, keep=keep, publish=publish),
            tell_of_distrust(replica, distrusted=engine.distrusted, publish=publish),
            react_to_nonfinite_answers(
                replica, publish=publish, drain_timeout=lambda: terms.drain_timeout, leave=None
            ),
        ]
        self._tasks += [asyncio.create_task(self.run(work)) for work in works]

    async def run(self, work: Coroutine[Any, Any, NoReturn]) -> None:
        """Work that nothing ends but a loss, which seals the gate."""
        try:
            await work
        except EngineLost as lost:
            self._replica.lose(lost)
        except Exception as broken:
            log.exception("hot.broken")
            self._replica.lose(EngineLost(f"a part of hotreload broke: {broken!r}"))

    async def end(self) -> None:
        """End it, and forget the tasks: each holds what it held when it was cancelled."""
        tasks, self._tasks = self._tasks, []
        await all_ended(tasks)


def tell(event: Event) -> None:
    """Log what happens: what somebody must look at, as a warning."""
    is_loss = isinstance(event, GateChanged) and event.code == EngineLost.code
    alarming = is_loss or isinstance(event, AnswersWithheld | LoaderDistrusted)
    log.log(logging.WARNING if alarming else logging.DEBUG, "%s", event)
