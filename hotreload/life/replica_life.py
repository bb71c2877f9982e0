"""Keeps one of the daemon's engines running, and restarts it after a loss.

The start makes the first engine. Every other engine, and each restarted one, is a twin: it copies
the weights of one that serves, so nothing is read and no other weights can answer. The engines that
serve when the daemon stops are closed by the daemon, once no work on them is left.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from hotreload.core.engines.replica import Replica, Replicas
from hotreload.core.judge import FIRST_ANSWER_SECONDS, NoAnswer, ask_probes
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import CheckpointRejected, EngineLost, TryAgain, first_of
from hotreload.events import GenerationLive, Publish, ReplicaMoved
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.start_engine import close_on_error
from hotreload.threads import run_to_end
from hotreload.types import Generation, Mode, ReplicaState

log = logging.getLogger("hotreload.replica")

LONG_ENOUGH = 300.0
"""Seconds an engine must have served for its next loss to count as its first."""

Run = Callable[[], Coroutine[Any, Any, None]]
StartTwin = Callable[[int, RunningEngine], Awaitable[RunningEngine]]
"""Start the engine of this index, with the weights that another one answers by."""
Tasks = Callable[[Replica[RunningEngine]], Mapping[str, Run]]
"""The engine's background tasks by name; EngineLost ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Things that the lives of all engines share."""

    entrance: Entrance[RunningEngine]
    by_index: dict[int, Replica[RunningEngine]]
    """All engines, also lost ones that are not closed yet."""
    replicas: Replicas[RunningEngine]
    """The engines that serve."""
    start: StartTwin
    judge: Callable[[RunningEngine], None]
    """Have the engine judge weights by the settings in force."""
    doubt: Callable[[Generation, CheckpointRejected], None]
    """Report that live weights answer although they fail the probes."""
    tasks: Tasks
    publish: Publish
    backoff: Callable[[int], float]
    probe_within: Callable[[], float]
    starting: asyncio.Lock
    """Held by the engine that starts: starts take turns, as each takes all memory it can get."""


class ReplicaLife:
    """Keeps the engine of one index serving."""

    def __init__(self, index: int, shared: Shared) -> None:
        self._index = index
        self._shared = shared
        self._failures = 0

    async def run(self) -> NoReturn:
        """Serve with the start's engine, if there is one, else with a twin, for ever.

        Raises the EngineLost of this engine when no other engine serves.
        """
        while True:
            if self._index not in self._shared.by_index:
                await self._start_until_joined()
            lost = await self._serve(self._shared.by_index[self._index])
            if len(self._shared.replicas) == 0:
                raise lost
            await self._close()
            await self._rest(str(lost))

    # --- as long as it serves ----------------------------------------------------------------

    async def _serve(self, replica: Replica[RunningEngine]) -> EngineLost:
        """Run the engine's background tasks while it serves; return why it was lost."""
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, run in self._shared.tasks(replica).items():
                    tasks.create_task(run(), name=name)
                tasks.create_task(_until_dead(replica), name="watch the engine")
                tasks.create_task(_until_lost(replica), name="see whether it is lost")
        except* EngineLost as losses:
            lost = first_of(losses)
            assert isinstance(lost, EngineLost)
            replica.lose(lost)
        if time.monotonic() - began >= LONG_ENOUGH:
            self._failures = 0
        return await replica.wait_until_lost()

    async def _close(self) -> None:
        """Close a lost engine and free its memory, once no attempt works on it."""
        async with self._shared.replicas.changing:
            replica = self._shared.by_index[self._index]
            await run_to_end(replica.engine.close())
            replica.drop_spares()
            del self._shared.by_index[self._index]

    async def _rest(self, why: str) -> None:
        """Publish the loss, and wait before the next start: longer each time."""
        self._failures += 1
        again_in = self._shared.backoff(self._failures)
        self._shared.publish(ReplicaMoved(self._index, ReplicaState.LOST, why, again_in))
        await asyncio.sleep(again_in)

    # --- its start ---------------------------------------------------------------------------

    async def _start_until_joined(self) -> None:
        """Start the engine as a twin of one that serves, again and again until it joins."""
        while True:
            try:
                async with self._shared.starting:
                    await self._twin()
                return
            except Exception as fault:
                log.warning("replica.not_started", exc_info=fault)
                why = f"it does not start: {type(fault).__name__}: {fault}"
            await self._rest(why)

    async def _twin(self) -> None:
        shared = self._shared
        shared.publish(ReplicaMoved(self._index, ReplicaState.STARTING))
        engine = await shared.start(self._index, shared.replicas.first.engine)
        async with close_on_error(engine):
            # The first answer compiles for long, and no attempt waits for it.
            await self._prove(engine, shared.replicas.live, FIRST_ANSWER_SECONDS)
            async with shared.replicas.changing:
                await self._join(engine)

    async def _prove(
        self, engine: RunningEngine, live: Generation, within: float, setting: str = ""
    ) -> None:
        """Ask the engine the probes in force, unless noise is live: its answers have no meaning."""
        self._shared.judge(engine)
        if live.revision.is_noise:
            return
        verdict = await ask_probes(engine, within, setting)
        if verdict is None:
            return
        if isinstance(verdict, NoAnswer) or not await self._fails_everywhere():
            raise verdict
        await engine.switch.scrub()  # a nonfinite answer may have left NaN in the cache
        self._shared.doubt(live, verdict)

    async def _fails_everywhere(self) -> bool:
        """Return True if an engine that serves fails the probes, too: then the probes are wrong."""
        shared, first = self._shared, self._shared.replicas.first.engine
        shared.judge(first)
        verdict = await ask_probes(first, shared.probe_within(), "[reload] probe_timeout")
        return verdict is not None and not isinstance(verdict, NoAnswer)

    async def _join(self, engine: RunningEngine) -> None:
        """Give the engine the live weights, prove that it answers, and admit requests."""
        shared, live = self._shared, self._shared.replicas.live
        mode = shared.replicas.mode
        if mode is Mode.OVERLAP and engine.switch.cannot_overlap:
            raise TryAgain(f"it cannot do what the others do: {engine.switch.cannot_overlap}")
        await _catch_up(engine, live, shared.replicas.first.engine)
        await self._prove(engine, live, shared.probe_within(), "[reload] probe_timeout")
        engine.count_anew()  # no request waited while its first answers compiled
        replica = Replica(engine, shared.entrance.renew(self._index), live, mode)
        shared.by_index[self._index] = replica
        replica.open()
        shared.publish(GenerationLive(live, self._index))
        shared.publish(ReplicaMoved(self._index, ReplicaState.SERVING))


async def _catch_up(engine: RunningEngine, live: Generation, first: RunningEngine) -> None:
    """Copy the live weights again, if others went live during the start."""
    mine = engine.weights.live
    if (mine.revision, mine.fingerprint) != (live.revision, live.fingerprint):
        staged = await engine.weights.twin(first.weights.live)
        await engine.weights.release(await engine.switch.exchange(staged))


async def _until_dead(replica: Replica[RunningEngine]) -> None:
    with replica.seal_when_lost():
        await replica.engine.wait_until_dead()


async def _until_lost(replica: Replica[RunningEngine]) -> None:
    """Raise EngineLost when an attempt loses the engine, though no part of it has died."""
    raise await replica.wait_until_lost()
