"""Decides what is live: boots, joins the engines and whoever works on them, and closes them.

Of several hosts rank 0 does it; `hosts.follow` is what the others do instead.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.core.operator import Operator
from hotreload.core.progress import AttemptProgress
from hotreload.core.reconcile import Reconciler
from hotreload.core.replica import Replica, Replicas
from hotreload.errors import EngineLost
from hotreload.events import GenerationLive
from hotreload.hosts.life.lead import Lead
from hotreload.life.boot import Start
from hotreload.life.common import Common
from hotreload.life.first_switch import FirstSwitch
from hotreload.life.joints import Serving
from hotreload.life.lasting import tasks_of
from hotreload.life.parts import choose_mode
from hotreload.life.replica_life import ReplicaLife, Shared
from hotreload.life.running import RunningEngine
from hotreload.life.served_by import served_by_now
from hotreload.life.start_engine import start_engine, start_twin
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Generation

log = logging.getLogger("hotreload")

Run = Callable[[], Coroutine[Any, Any, None]]


class Deciding:
    """Its `run` lasts from the boot to the daemon's end."""

    def __init__(self, common: Common, lead: Lead | None = None) -> None:
        """With `lead` there are other hosts, which are taken along."""
        self._common = common
        self._lead = lead
        self._lasting: dict[str, Run] = {}
        self._by_index: dict[int, Replica[RunningEngine]] = {}
        """The engines that there are, behind their gates."""

    async def run(self) -> None:
        """Boot, and keep what is live up to date; EngineLost when no engine serves any more."""
        alone: AbstractAsyncContextManager[None] = nullcontext()
        async with self._lead.together() if self._lead else alone:
            await self._boot_and_reconcile()

    def lose(self, why: EngineLost) -> None:
        """Count every engine as lost: let nobody in, and have who is inside hear why."""
        for replica in self._by_index.values():
            replica.lose(why)

    async def _boot_and_reconcile(self) -> None:
        common = self._common
        switch = FirstSwitch(
            common.attempts,
            start_engine=self._start_engine,
            go_live=self.join,
            served_by=partial(served_by_now, common.settings),
            doubt=common.doubt,
        )
        start = Start(
            common.settings,
            attempts=common.attempts,
            source=common.source,
            validate=common.checking,
            serve=common.checking.serve,
            switch=switch,
            rules=common.rules,
            gone=common.gone,
        )
        try:
            await start.run()
            gc.freeze()  # the start's objects stay for good: spare them every later collection
            async with asyncio.TaskGroup() as tasks:
                for name, run in self._lasting.items():
                    tasks.create_task(run(), name=name)
        finally:
            common.entrance.seal("hotreload is leaving", code="stopping")  # whatever the reason is
            common.arrival.serving = None
            engines = [replica.engine for replica in self._by_index.values()]
            for engine in (switch.engine, *engines):
                if engine is not None:
                    await uninterrupted(engine.close())

    async def _start_engine(
        self, model: Path, weights: Checkpoint | None, progress: AttemptProgress
    ) -> RunningEngine:
        make = self._lead.make if self._lead else None
        engine = await start_engine(self._common.settings, model, weights, progress, make)
        checking = self._common.checking
        if not checking.served.tensors:  # a folder without weights; now there are some
            tensors = weights.tensors if weights else engine.expected_tensors()
            checking.serve(replace(checking.served, tensors=tensors))
        log.info("engine.started", extra=engine.facts())
        return engine

    async def _start_twin(self, index: int, twin: RunningEngine) -> RunningEngine:
        engine = await start_twin(self._common.rereading.settings, index, twin)
        self._common.take_signals()
        log.info("engine.started", extra={**engine.facts(), "replica": index})
        return engine

    def join(self, engine: RunningEngine, live: Generation) -> None:
        """Open the gate to an engine; the tasks in `_lasting` must run as long as it is open."""
        common = self._common
        common.take_signals()
        chosen = choose_mode(common.settings, engine)
        replica = Replica(engine, common.entrance.gates[0], live, chosen.mode)
        self._by_index[replica.index] = replica
        replicas = Replicas(self._by_index)
        reconciler = Reconciler(
            source=common.source,
            replicas=replicas,
            attempts=common.attempts,
            validate=common.checking,
            rules=common.rules,
            min_interval=common.settings.reload.min_interval,
        )
        operator = Operator(
            reconciler, source=common.source, replicas=replicas, publish=common.publish
        )
        common.arrival.serving = Serving(replicas, operator)
        common.publish(chosen)
        replica.open()
        common.publish(GenerationLive(live, replica.index))
        self._lasting = self._tasks(replicas, reconciler, operator)

    def _tasks(
        self, replicas: Replicas[RunningEngine], reconciler: Reconciler, operator: Operator
    ) -> dict[str, Run]:
        """What runs from now on, to the daemon's end."""
        common = self._common
        tasks = partial(
            tasks_of,
            settings=common.settings,
            reconciler=reconciler,
            operator=operator,
            publish=common.publish,
        )
        shared = Shared(
            entrance=common.entrance,
            by_index=self._by_index,
            replicas=replicas,
            start=self._start_twin,
            judge=common.rereading.have_judge,
            tasks=tasks,
            publish=common.publish,
            backoff=common.attempts.backoff,
            probe_within=lambda: reconciler.rules.probe_timeout,
            starting=asyncio.Lock(),
        )
        lives = {
            f"engine {index}": ReplicaLife(index, shared).run
            for index in range(common.settings.engine.replicas)
        }
        return {
            "reconcile": reconciler.run,
            "save what is not": partial(common.state.keep_trying, common.attempts.ledger),
            "ask doubted probes again": partial(
                common.doubt.run, replicas, lambda: reconciler.rules.probe_timeout
            ),
            "look for files": partial(common.files_gone.run, replicas.keeps),
            "reread the settings": partial(common.rereading.run, replicas, reconciler),
            **lives,
        }
