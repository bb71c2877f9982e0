"""The life of a host that decides which weights are live: a start, then the background tasks.

Of several hosts rank 0 lives it, and reaches the others through `others`.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hotreload.attempts import ROLLBACK
from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.background import (
    close_drained_generations,
    react_to_nonfinite_answers,
    report_distrust,
    verify_live,
)
from hotreload.core.engines.replica import Replica, Replicas, choose_mode
from hotreload.core.operator import Operator
from hotreload.core.ports import Source
from hotreload.core.reconcile import Reconciler
from hotreload.errors import EngineLost
from hotreload.events import Events, GenerationLive, Publish
from hotreload.facts.heap import STARTING, keep_what_is_there
from hotreload.feature import AllFeatures
from hotreload.life.live_settings import CheckpointChecks, LiveSettings
from hotreload.life.replica_life import ReplicaLife, Run, Shared
from hotreload.life.running_engine import RunningEngine
from hotreload.life.serving_slot import ServingSlot
from hotreload.life.start.boot import Start
from hotreload.life.start.first_switch import FirstSwitch
from hotreload.life.start.model_files import served_by_now
from hotreload.life.start.start_engine import Engines, MakeEngine, import_in_background
from hotreload.life.start.start_troubles import Doubt, Gone
from hotreload.life.start.warmup import compile_behind
from hotreload.settings.sections import Settings
from hotreload.threads import run_to_end
from hotreload.types import Generation


class OtherHosts(Protocol):
    """The other hosts of the engine, which carry out what this host decides."""

    def together(self) -> AbstractAsyncContextManager[None]:
        """Meet the other hosts, and stay connected until the block ends."""

    @property
    def make(self) -> MakeEngine:
        """Start the engine on all hosts."""


@dataclass(eq=False)
class ServingLife:
    """Runs from the start to the daemon's end.

    Its parts are the engines behind their gates, the reconciler, the operator, and their tasks.
    """

    slot: ServingSlot
    events: Events
    live_settings: LiveSettings
    source: Source
    checking: CheckpointChecks
    attempts: Attempts
    features: AllFeatures
    started: Callable[[], None]
    """Called after an engine has started, and has answered."""
    others: OtherHosts | None
    """The other hosts, which take part in every change of the engine."""

    def __post_init__(self) -> None:
        self._publish = self.attempts.publish
        make = self.others.make if self.others else None
        self._engines = Engines(self.live_settings, self.checking, make, self.started)
        settings = self.live_settings.settings
        self._doubt, gone = Doubt(self._publish), Gone(self._publish)
        for trouble in (self._doubt, gone):
            self.events.subscribe(trouble.observe)
        switch = FirstSwitch(
            self.attempts,
            start_engine=self._engines.first,
            go_live=self.begin,
            served_by=partial(served_by_now, settings),
            doubt=self._doubt,
        )
        self._start = Start(
            settings,
            attempts=self.attempts,
            source=self.source,
            validate=self.checking,
            serve=self.checking.serve,
            switch=switch,
            gone=gone,
        )
        self._lasting: dict[str, Run] = {}
        self._by_index: dict[int, Replica[RunningEngine]] = {}
        """All engines, behind their gates."""

    async def run(self) -> None:
        """Start, and keep the live weights up to date; EngineLost when no engine serves."""
        async with self.others.together() if self.others else nullcontext():
            try:
                async with import_in_background():
                    await self._start.run()
                keep_what_is_there(STARTING)
                async with asyncio.TaskGroup() as tasks:
                    for name, run in self._lasting.items():
                        tasks.create_task(run(), name=name)
            finally:
                await self._close()

    def lose(self, why: EngineLost) -> None:
        """Mark every engine as lost: seal the gates, and end the requests inside."""
        for replica in self._by_index.values():
            replica.lose(why)

    async def _close(self) -> None:
        """Seal the gates, and close all engines, also one that does not serve yet."""
        self.slot.entrance.seal("hotreload is leaving", code="stopping")
        self.slot.clear()
        engines = [replica.engine for replica in self._by_index.values()]
        for engine in (self._start.engine, *engines):
            if engine is not None:
                await run_to_end(engine.close())

    def begin(self, engine: RunningEngine, live: Generation) -> None:
        """Admit requests to the first engine; `run` must run as long as its gate is open."""
        engine.count_anew()  # no request waited while the first answer compiled
        self.started()  # again: XLA may install its handler with the probe's programs
        settings = self.live_settings.settings
        chosen = choose_mode(settings.reload.mode, engine)
        replica = Replica(engine, self.slot.entrance.gates[0], live, chosen.mode)
        self._by_index[replica.index] = replica
        replicas = Replicas(self._by_index)
        reconciler = Reconciler(
            source=self.source,
            replicas=replicas,
            attempts=self.attempts,
            validate=self.checking,
            rules=settings.rules,
            judges=self.features.judges,
        )
        operator = Operator(
            reconciler, source=self.source, replicas=replicas, publish=self._publish
        )
        self.slot.fill(replicas, operator)
        self._publish(chosen)
        replica.open()
        self._publish(GenerationLive(live, replica.index))
        self._lasting = self._tasks(replicas, reconciler)

    def _tasks(self, replicas: Replicas[RunningEngine], reconciler: Reconciler) -> dict[str, Run]:
        """List the background tasks from now on to the daemon's end."""

        def probe_within() -> float:
            return reconciler.rules.probe_timeout

        settings = self.live_settings.settings
        shared = Shared(
            entrance=self.slot.entrance,
            by_index=self._by_index,
            replicas=replicas,
            start=self._engines.twin,
            judge=self.live_settings.have_judge,
            doubt=lambda live, verdict: self._doubt.of(
                self.attempts.ledger.place_of(live), verdict
            ),
            tasks=partial(self._tasks_of, settings, reconciler, replicas.changing),
            publish=self._publish,
            backoff=self.attempts.backoff,
            probe_within=probe_within,
            starting=asyncio.Lock(),
        )
        lives = {
            f"engine {index}": ReplicaLife(index, shared).run
            for index in range(settings.engine.replicas)
        }
        return {
            "reconcile": reconciler.run,
            "ask doubted probes again": partial(self._doubt.run, replicas, probe_within),
            "reread the settings": partial(
                self.live_settings.run, replicas, reconciler, self.features
            ),
            **self.features.tasks,
            **lives,
        }

    def _tasks_of(
        self,
        settings: Settings,
        reconciler: Reconciler,
        changing: asyncio.Lock,
        replica: Replica[RunningEngine],
    ) -> Mapping[str, Run]:
        """List the tasks that run as long as this engine serves; EngineLost ends them."""
        keep, publish = settings.reload.keep_previous, self._publish
        is_to_leave = settings.checks.on_nonfinite_answers == "rollback"
        return {
            "heed answers": partial(
                react_to_nonfinite_answers,
                replica,
                publish=publish,
                drain_timeout=lambda: reconciler.rules.drain_timeout,
                leave=self.slot.make_leave(ROLLBACK) if is_to_leave else None,
            ),
            "close drained generations": partial(
                close_drained_generations, replica, keep=keep, publish=publish
            ),
            "compile for batches": partial(
                compile_behind,
                replica,
                changing=changing,
                most=settings.engine.warm_batches,
                within=settings.engine.warm_timeout,
                publish=publish,
            ),
            **integrity_tasks(settings, replica, publish),
        }


def integrity_tasks(
    settings: Settings, replica: Replica[RunningEngine], publish: Publish
) -> Mapping[str, Run]:
    """List the tasks that check the weights' integrity."""
    distrusted = replica.engine.weights.wait_for_distrust
    tell = partial(report_distrust, replica, distrusted=distrusted, publish=publish)
    every = settings.checks.verify_live_every
    if every is None:
        return {"tell of distrust": tell}
    look = partial(
        verify_live,
        replica,
        checksums=replica.engine.weights.checksums,
        every=every,
        publish=publish,
    )
    return {"tell of distrust": tell, "verify what is live": look}
