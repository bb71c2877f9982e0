"""`life.running_engine.RunningEngine` on a real sglang-jax: start here.

Joins the parts: `upstream.build` builds the engine, staging loads beside it, the scheduler thread
exchanges, answers serve. Knows nothing of gates, wishes, or files before they were checked.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self

from hotreload.engine import facts
from hotreload.engine.answering.answers import Answer, Answers, all_ended
from hotreload.engine.answering.encoder_copy import EncoderCopy, copy_of
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.tool_calls import CallsOfAnswers
from hotreload.engine.options import PROBES_ALONE, EngineOptions, UnseenOptions
from hotreload.engine.proving import ProvingEngine
from hotreload.engine.upstream import build, frozen
from hotreload.engine.upstream.parts import Parts, build_parts, list_watched, take_apart_off_loop
from hotreload.engine.upstream.thread import recompiles
from hotreload.engine.upstream.thread.between import BetweenSteps
from hotreload.engine.upstream.thread.nonfinite_logits import WithheldCount
from hotreload.engine.upstream.thread.scheduler import Wake
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.load.first_load import FirstLoad
from hotreload.engine.weights.sets import First, StagingOptions
from hotreload.engine.weights.twins import Original
from hotreload.errors import AnswerNonfinite, TryAgain
from hotreload.threads import deadline, in_thread, run_to_end
from hotreload.types import Checkpoint, EngineLoad, Revision, Staged, TensorSpec


class SglangEngine(ProvingEngine):
    """One running engine; made by `start`.

    Its verbs that change weights are in what it is made of: those that make and free spare sets in
    `StagingEngine`, those that say which set answers in `SwitchingEngine`, those that give memory
    back for a while in `ReleasingEngine`, those that ask weights where nobody sees it in
    `ProvingEngine`.
    """

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
        """Take over a built engine; this blocks, so `start` calls it in a thread."""
        super().__init__(
            parts, watch, first=first, probes=probes, terms=terms, unseen=unseen, at_once=at_once
        )
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._compiled = recompiles.CompilationCounter(parts.running_scheduler.serving_threads)
        self._withheld = WithheldCount()
        self._encoder: EncoderCopy | None = None
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
        With a `twin`, a running engine of the same model, nothing is read: what is live there once
        this one is built is copied, under its name. TryAgain when that engine has ended.
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
        first = named(filling or revision) if twin is None else twin._lent()
        make = partial(cls, parts, watch, probes=probes, terms=terms)
        make = partial(make, unseen=options.unseen, at_once=options.at_once)
        upstreams = time.monotonic() - began
        engine = await cls._begun(make, parts, watch, first, checkpoint)
        ours = time.monotonic() - began - upstreams
        engine.start_seconds = {"upstream": round(upstreams, 3), "ours": round(ours, 3)}
        return engine

    @classmethod
    async def _begun(
        cls,
        make: Callable[..., Self],
        parts: Parts,
        watch: EngineWatch,
        first: AbstractAsyncContextManager[First],
        checkpoint: Checkpoint | None,
    ) -> Self:
        """Have begin what `make` makes of a built engine; nothing of one that does not is left."""
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

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts, off the loop; BadRequest names what is wrong."""
        self._watch.check()
        return await self._prompts.prepare(request)

    @property
    def encodes_as(self) -> str:
        """The name of the copy that was made of what encodes its prompts; empty if none was."""
        return self._encoder.name if self._encoder is not None else ""

    async def encoder_copy(self) -> EncoderCopy | None:
        """Make a copy of what encodes its prompts, once; None where there can be none."""
        if self._encoder is None:
            tokenizer, limits, can = facts.tokenizer_of(self._parts), self.limits, self.capabilities
            self._encoder = await in_thread(lambda cancel: copy_of(tokenizer, limits, can))
        return self._encoder

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Encode texts, or a chat by the model's template; BadRequest names what is wrong."""
        self._watch.check()
        return await self._prompts.tokenize(asked)

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """The text of each list of ids; BadRequest names an id that there is not."""
        self._watch.check()
        return await self._prompts.detokenize(ids, skip_special=skip_special)

    async def generate(
        self, request: Mapping[str, Any] | Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a request, prepared or not: once, or piece by piece when it streams.

        These weights answer it, or the live ones. Closing the iterator aborts, and returns when
        the engine has forgotten the request.
        EngineLost ends every answer, AnswerNonfinite one that the weights made NaN of.
        """
        self._watch.check()
        parsed = request if isinstance(request, Parsed) else await self.prepare(request)
        lane = self._lane(weights)
        if is_unseen := lane in self._proving:
            parsed = self._fit_for_candidate(parsed)
        try:
            async with aclosing(self._front.generate(parsed, lane)) as answers:
                calls = CallsOfAnswers(parsed.calls) if parsed.calls is not None else None
                async for answer in answers:
                    yield answer if calls is None else calls.add_calls(answer)
        except AnswerNonfinite:
            if not is_unseen:
                self._withheld.note()
            raise

    @property
    def leaf_count(self) -> int:
        """Number of leaves of a set."""
        return len(self.layout.places)

    @property
    def upstream(self) -> Any:
        """sglang-jax's own Engine."""
        return self._parts.engine

    def facts(self) -> dict[str, Any]:
        """Tell what runs, and on what, for people and logs."""
        began = {"loader": self.first_loader, "start_seconds": self.start_seconds}
        return facts.facts_of(self._parts) | began

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self.plan.tensors

    @property
    def ignorable(self) -> frozenset[str]:
        """Tensors a checkpoint may have though nothing loads them."""
        return self.plan.ignorable

    @property
    def recompiles(self) -> int:
        """Count of the compilations that the serving threads waited for since the start."""
        return self._compiled.count

    @property
    def load(self) -> EngineLoad:
        """Figures of how busy it is, noted by the scheduler thread a few times a second."""
        return self._scheduler.load.last

    @property
    def under_way(self) -> int:
        """Number of prompts that the engine is busy with."""
        return self._front.under_way

    def count_anew(self) -> None:
        """Forget what the start asked by itself: from now on it is clients who are counted."""
        self._withheld = WithheldCount()
        self._compiled.begin_anew()

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost a moment after the engine died, or was found to hang."""
        await self._watch.until_lost()

    async def wait_for_withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld for NaN; return how many were."""
        return await self._withheld.more_than(beyond)

    def is_turning(self, within: float) -> bool:
        """Say whether the scheduler thread turned in the last `within` seconds, or is in a step."""
        return self._scheduler.is_turning(within)

    def lose(self, why: str) -> None:
        """Count it as lost: every call that waits for it ends with EngineLost."""
        self._watch.lose(why)

    async def close(self) -> None:
        """End the threads, close the sockets, free the device; a second call does nothing."""
        if self._watch.is_closed:
            return
        self._watch.close()
        await all_ended(self._tasks)
        await self._front.close()
        self._prompts.close()
        self._scheduler.ask_to_stop()
        self._front.send(Wake())
        self.drop_references()
        if self._shadow_pool is not None:
            self._shadow_pool.free()
        self._ahead.drop_references()
        del self._scheduler, self._shadow_pool, self._front, self._between
        await run_to_end(take_apart_off_loop(self._parts))

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Original]:
        """Lend what is live to a twin, to copy: it is not traded for others meanwhile.

        TryAgain when there is nothing to copy any more: another twin may be there later.
        """
        if self._watch.is_closed or self._watch.reason is not None:
            raise TryAgain("the engine to be copied has ended", code="original_gone")
        async with self.unchanged:
            yield Original(self.live, self.loaders.comparison)

    async def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Do the part of the start that belongs on the event loop; `close` undoes a half of it."""
        self._front = self._make_front()
        self._between = self._make_between()
        await self._know_whole()
        await self.scrub()  # compiles the scrub: the first failed probe must not wait for that
        await self._ready_shadow()
        # From now on: a step of the start may compile for longer than a step may take later.
        looking = self._watch.look(self._parts.fault, list_watched(self._parts))
        self._tasks.append(asyncio.create_task(looking, name="engine watch"))
        self._compiled.begin_anew()
        frozen.freeze(self._parts)
        if checkpoint is not None:
            self._tasks.append(self.compare_with(checkpoint))

    # --- what is another thing for an engine over several ranks -----------------------------------

    def _make_front(self) -> Answers:
        return Answers(self._parts.tokenizer_manager, self._watch, self._parts.outlet)

    def _make_between(self) -> BetweenSteps:
        return BetweenSteps(self._scheduler, self._front, self._watch)

    async def _know_whole(self) -> None:
        """On a single host every leaf has been measured."""


@asynccontextmanager
async def named[T: Revision | FirstLoad](first: T | None) -> AsyncIterator[T]:
    """Name what is loaded while upstream builds an engine."""
    assert first is not None, "weights that are no copy need a name"
    yield first
