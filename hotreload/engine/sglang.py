"""`life.running_engine.RunningEngine` on a real sglang-jax: start here.

Joins the parts: `upstream.build` builds the engine, `weights` loads beside it, `switch` exchanges
on the scheduler thread, `answers` and `unseen` generate. Knows nothing of gates, wishes, or files
before they were checked.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self

from hotreload.engine import facts
from hotreload.engine.ahead import Ahead
from hotreload.engine.answering.answers import Answers, all_ended
from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.probe import Probe
from hotreload.engine.client_answers import ClientAnswers
from hotreload.engine.options import PROBES_ALONE, EngineOptions, UnseenOptions
from hotreload.engine.shadow_lanes import ShadowLanes
from hotreload.engine.unseen_answers import UnseenAnswers
from hotreload.engine.unseen_room import UnseenRoom
from hotreload.engine.upstream import build, frozen
from hotreload.engine.upstream.parts import Parts, build_parts, list_watched, take_apart_off_loop
from hotreload.engine.upstream.thread import recompiles
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.rehearsal import find_rehearsal
from hotreload.engine.upstream.thread.scheduler import Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weight_switch import WeightSwitch, adopt_first
from hotreload.engine.weights.load.first_load import FirstLoad
from hotreload.engine.weights.sets import First, StagingOptions, WeightSets
from hotreload.engine.weights.twins import Original
from hotreload.errors import ProbeFailed, TryAgain
from hotreload.threads import deadline, in_thread, run_to_end
from hotreload.types import Checkpoint, EngineLoad, Revision


class SglangEngine:
    """One running engine, made by `start`; its verbs are those of the objects that it holds."""

    switch: WeightSwitch
    """Changes which weights answer clients."""
    unseen: UnseenAnswers
    """Answers of each set of weights that no client sees."""
    answers: ClientAnswers
    """Answers to clients' requests."""

    def __init__(
        self,
        parts: Parts,
        watch: EngineWatch,
        *,
        first: First,
        probes: Sequence[Probe],
        terms: StagingOptions,
        unseen: UnseenOptions = PROBES_ALONE,
        at_once: int = 1,
    ) -> None:
        """Take over a built engine; this blocks, so `start` calls it in a thread.

        `unseen` is what it must have room for; for steps of `at_once` requests is compiled first.
        """
        scheduler = parts.running_scheduler
        self.watch = watch
        """Knows whether the engine is lost."""
        self.ahead = Ahead(find_rehearsal(scheduler), scheduler.compiled_sizes, watch, at_once)
        """Compiles for sizes of batches before any request needs them."""
        self.weights = self._make_sets(parts, first, terms)
        """The live set of weights, and the spare ones."""
        adopt_first(self.weights, scheduler, first)
        self._parts = parts
        self._scheduler = scheduler
        self._prompts = facts.make_prompts(parts)
        self._canaries = Canaries(probes, self._prompts)
        self._unseen = unseen
        self._tasks: list[asyncio.Task[None]] = []
        self._compiled = recompiles.CompilationCounter(scheduler.serving_threads)
        self.start_seconds: Mapping[str, float] = {}
        """Time that building it took: upstream's part, and what we made of that."""

    @classmethod
    async def start(
        cls,
        options: EngineOptions,
        *,
        terms: StagingOptions,
        probes: Sequence[Probe] = (),
        revision: Revision | None = None,
        checkpoint: Checkpoint | None = None,
        twin: "SglangEngine | None" = None,
        filling: FirstLoad | None = None,
    ) -> "SglangEngine":
        """Start an engine, whose weights are called `revision`.

        `checkpoint` holds the same weights, in files that stay: our own loader is compared with
        upstream's on them. ConfigError names the setting to change, also when there are not devices
        for so many engines in all.
        With a `twin`, a running engine of the same model, nothing is read: the weights live there
        once this one is built are copied, under their name. TryAgain when that engine has ended.
        With `filling` our own loader reads them, and the model's folder holds none.
        """
        watch, began = EngineWatch(), time.monotonic()
        options = options if twin is None else replace(options, load_format="dummy")
        building = partial(build.build, options, watch.report)
        if filling is None:
            parts = await build_parts(lambda cancel: building())
        else:
            what, loading = f"loading {revision}", partial(filling.hook_loader, terms.quiet)
            async with deadline(filling.within, what, "[reload] stage_timeout"):
                parts = await build_parts(
                    lambda cancel: building(loading=loading(cancel)), is_read=True
                )
        first = name_first(filling or revision) if twin is None else twin._lend_live()
        make = partial(cls, parts, watch, probes=probes, terms=terms)
        make = partial(make, unseen=options.unseen, at_once=options.at_once)
        upstreams = time.monotonic() - began
        engine = await cls._begin_built(make, parts, watch, first, checkpoint)
        ours = time.monotonic() - began - upstreams
        engine.start_seconds = {"upstream": round(upstreams, 3), "ours": round(ours, 3)}
        return engine

    @classmethod
    async def _begin_built(
        cls,
        make: Callable[..., Self],
        parts: Parts,
        watch: EngineWatch,
        first: AbstractAsyncContextManager[First],
        checkpoint: Checkpoint | None,
    ) -> Self:
        """Make the engine by `make`, and begin it; after an error nothing of it is left."""
        try:
            async with first as given:
                # If the start is cancelled, what was made here is taken apart with the parts.
                engine = await in_thread(lambda cancel: make(first=given))
        except BaseException:
            watch.close()
            await run_to_end(take_apart_off_loop(parts))
            raise
        try:
            await engine._begin(checkpoint)
        except BaseException:
            await run_to_end(engine.close())
            raise
        return engine

    @property
    def upstream(self) -> Any:
        """sglang-jax's own Engine."""
        return self._parts.engine

    def facts(self) -> dict[str, Any]:
        """Return the model, devices and settings of the engine, for people and logs."""
        began = {"loader": self.weights.first_loader, "start_seconds": self.start_seconds}
        return facts.facts_of(self._parts) | began

    @property
    def recompiles(self) -> int:
        """Count of the compilations that the serving threads waited for since the start."""
        return self._compiled.count

    @property
    def load(self) -> EngineLoad:
        """Figures of how busy it is, noted by the scheduler thread a few times a second."""
        return self._scheduler.load.last

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._canaries.change(probes)
        self.weights.max_drift = max_drift

    def count_anew(self) -> None:
        """Reset the counters: requests of the start do not count."""
        self.answers.count_anew()
        self._compiled.begin_anew()

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost a moment after the engine died, or was found to hang."""
        await self.watch.until_lost()

    def is_turning(self, within: float) -> bool:
        """Say whether the scheduler thread turned in the last `within` seconds, or is in a step."""
        return self._scheduler.is_turning(within)

    def lose(self, why: str) -> None:
        """Count it as lost: every call that waits for it ends with EngineLost."""
        self.watch.lose(why)

    async def close(self) -> None:
        """End the threads, close the sockets, free the device; a second call does nothing."""
        if self.watch.is_closed:
            return
        self.watch.close()
        await all_ended(self._tasks)
        await self._front.close()
        self._prompts.close()
        self._scheduler.ask_to_stop()
        self._front.send(Wake())
        self.weights.drop_references()
        self._shadows.drop_references()
        self.switch.drop_references()
        self.ahead.drop_references()
        del self._scheduler, self._front
        await run_to_end(take_apart_off_loop(self._parts))

    @asynccontextmanager
    async def _lend_live(self) -> AsyncIterator[Original]:
        """Lend the live weights to a twin, to copy: they are not traded for others meanwhile.

        TryAgain when the engine has ended: another one may be there later.
        """
        if self.watch.is_closed or self.watch.reason is not None:
            raise TryAgain("the engine to be copied has ended", code="original_gone")
        async with self.weights.unchanged:
            yield Original(self.weights.live, self.weights.loaders.comparison)

    async def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Do the part of the start that belongs on the event loop; `close` undoes a half of it."""
        weights, scheduler, watch = self.weights, self._scheduler, self.watch
        self._front = self._make_front()
        between = self._make_between()
        self._shadows = ShadowLanes(scheduler, between)
        self.switch = WeightSwitch(weights, scheduler, between, self._shadows, watch)
        room = UnseenRoom(self._unseen, self._prompts, self._canaries, self._shadows, self.ahead)
        self.unseen = self._make_unseen(room)
        self.answers = ClientAnswers(self._front, self._prompts, self.switch, self._shadows, watch)
        await self._complete_first_set()
        await self.switch.scrub()  # compiles the scrub: the first failed probe must not wait
        await self._decide_where_to_prove(room)
        # From now on: a step of the start may compile for longer than a step may take later.
        looking = watch.look(self._parts.fault, list_watched(self._parts))
        self._tasks.append(asyncio.create_task(looking, name="engine watch"))
        self._compiled.begin_anew()
        frozen.freeze(self._parts)
        if checkpoint is not None:
            self._tasks.append(weights.loader_check.begin(checkpoint, weights.live.weights))

    async def _decide_where_to_prove(self, room: UnseenRoom) -> None:
        """Decide where weights are proven, and where spare ones wait; compile for the proof.

        Else the first checkpoint would have all clients wait for the compiling.
        """
        comparing = await room.make_pool()
        pool = self._shadows.pool
        self.weights.decide(() if pool is None else pool.buffers)
        if pool is None or self.switch.cannot_overlap or room.compile_in(pool, comparing):
            return
        with suppress(ProbeFailed):  # the start shows what its weights answer
            await self.unseen.prove(self.weights.live)

    # --- differences of an engine over several ranks ----------------------------------------------

    def _make_sets(self, parts: Parts, first: First, terms: StagingOptions) -> WeightSets:
        return WeightSets(parts.model_runner, terms, first, self.ahead.until_ready_to_prove)

    def _make_front(self) -> Answers:
        return Answers(self._parts.tokenizer_manager, self.watch, self._parts.outlet)

    def _make_between(self) -> BetweenSteps:
        return BetweenSteps(self._scheduler, self._front, self.watch)

    def _make_unseen(self, room: UnseenRoom) -> UnseenAnswers:
        parts = (self._front, self.switch, self._shadows, room)
        return UnseenAnswers(*parts, canaries=self._canaries, ahead=self.ahead)

    async def _complete_first_set(self) -> None:
        """Do nothing: on a single host every leaf has been measured."""


@asynccontextmanager
async def name_first[T: Revision | FirstLoad](first: T | None) -> AsyncIterator[T]:
    """Yield the name of the weights that are loaded while upstream builds an engine."""
    assert first is not None, "weights that are no copy need a name"
    yield first
