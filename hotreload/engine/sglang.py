"""`life.running.RunningEngine` on a real sglang-jax: start here.

Joins the parts: `upstream.build` builds the engine, staging loads beside it, the scheduler thread
exchanges, answers serve. Knows nothing of gates, wishes, or files before they were checked.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hotreload.engine import facts
from hotreload.engine.answering.answers import Answer, Answers, all_ended
from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.grammars import grammars_of
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.first_weights import begin_with, check_running, lent, named, shadow_pool
from hotreload.engine.generations import Generations
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.starting import built, running
from hotreload.engine.upstream import build, frozen, recompiles
from hotreload.engine.upstream.between import BetweenSteps
from hotreload.engine.upstream.nonfinite import Withheld
from hotreload.engine.upstream.scheduler import Wake
from hotreload.engine.upstream.watch import EngineWatch
from hotreload.engine.weights.leaves import signature
from hotreload.engine.weights.sets import StagingOptions
from hotreload.engine.weights.twins import Original
from hotreload.errors import AnswerNonfinite, ProbeFailed
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, EngineLoad, HowFar, Noise, Revision, Staged, TensorSpec


class SglangEngine:
    """One running engine and the weights that are live in it; made by `start`."""

    def __init__(
        self,
        parts: build.Parts,
        watch: EngineWatch,
        *,
        first: Revision | Original,
        probes: Sequence[Probe],
        terms: StagingOptions,
    ) -> None:
        """Take over a built engine; this blocks, so `start` calls it in a thread."""
        self._parts, self._watch = parts, watch
        self._tasks: list[asyncio.Task[None]] = []
        self._compiled = recompiles.Counting(parts.running_scheduler.serving)
        self._withheld = Withheld()
        self._shadow_pool: ShadowPool | None = None
        self._scheduler = parts.running_scheduler
        tokenizer = facts.tokenizer_of(parts)
        grammars = grammars_of(self._scheduler.scheduler, tokenizer)
        self.limits = facts.limits_of(parts)
        self.capabilities = facts.capabilities_of(parts, grammars=grammars is not None)
        self._prompts = Prompts(tokenizer, self.limits, self.capabilities, grammars)
        self._sets, staged = begin_with(first, self._scheduler, terms)
        self._first: Staged | None = staged
        self._canaries = Canaries(probes, self._prompts)

    @classmethod
    async def start(
        cls,
        *,
        model: Path,
        device: str,
        terms: StagingOptions,
        revision: Revision | None = None,
        tp: int = 1,
        dtype: str = "auto",
        load_format: str = "auto",
        args: Mapping[str, Any] | None = None,
        probes: Sequence[Probe] = (),
        checkpoint: Checkpoint | None = None,
        first_device: int = 0,
        engines: int = 1,
        twin: "SglangEngine | None" = None,
    ) -> "SglangEngine":
        """Start an engine that answers from `model`, whose weights are called `revision`.

        `checkpoint` holds the same weights, in files that stay: our own loader is compared with
        upstream's on them. ConfigError names the setting to change, also when there are not devices
        for so many `engines` in all.
        With a `twin`, a running engine of the same model, nothing is read: what is live there once
        this one is built is copied, under its name. TryAgain when that engine has ended.
        """
        watch = EngineWatch()
        make_parts = partial(build.build, model=model, device=device, tp=tp, dtype=dtype)
        make_parts = partial(make_parts, load_format="dummy" if twin else load_format)
        make_parts = partial(make_parts, args=args or {}, first_device=first_device)
        parts = await built(partial(make_parts, engines=engines, report=watch.report))
        make = partial(cls, parts, watch, probes=probes, terms=terms)
        first = named(revision) if twin is None else twin._lent()
        return await running(make, parts, watch, first, checkpoint)

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts, off the loop; BadRequest names what is wrong."""
        self._watch.check()
        return await self._prompts.prepare(request)

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
        try:
            lane = self._generations.lane(weights)
            async with aclosing(self._front.generate(parsed, lane)) as answers:
                async for answer in answers:
                    yield answer
        except AnswerNonfinite:
            self._withheld.note()
            raise

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._generations.live

    @property
    def cannot_overlap(self) -> str | None:
        """Why two sets of weights cannot answer side by side in it; None when they can."""
        return self._sets.why_one_set or self._scheduler.cannot_overlap

    @property
    def spares_wait_on_host(self) -> bool:
        """Whether one set of weights at a time is on the device."""
        return self._sets.why_one_set is not None

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load beside the live weights, or to the host; a cancelled call leaves nothing behind."""
        return await self._sets.stage(checkpoint, self.live)

    async def twin(self, staged: Staged) -> Staged:
        """Copy what another engine of the same model holds; it fails as `stage` does."""
        return await self._sets.twin(staged, self.live)

    @property
    def staging(self) -> HowFar | None:
        """How far `stage` is with a checkpoint; None while it is with none."""
        return self._sets.staging

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        return await self._sets.perturb(revision, noise, self.live)

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights every canary prompt, in a lane that nobody else is answered in."""
        assert self._shadow_pool is not None, self.cannot_overlap
        async with self._generations.shadow(staged, self._shadow_pool) as lane:
            await self._ask_canaries(lane)

    async def flip(self, staged: Staged) -> Staged:
        """Answer new requests by `staged`; returns what answered them, and ends with `retire`."""
        return await self._generations.flip(staged)

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is left of weights that nobody is admitted to any more."""
        await self._generations.retire(staged)

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live; only while nothing is under way."""
        return await self._generations.exchange(staged)

    async def scrub(self) -> None:
        """Overwrite the KV pool with zeros and forget every cached prefix."""
        await self._generations.scrub()

    async def probe(self) -> None:
        """Ask the live weights every canary prompt; ProbeFailed lists each bad answer."""
        await self._ask_canaries(self._generations.lane(None))

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._canaries.change(probes)
        self._sets.max_drift = max_drift

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way, by these weights or by any, with the text it has so far."""
        self._generations.abort(staged)

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory; what is there already stays as it is."""
        return await self._sets.stow(staged, self.live)

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back to where spare ones wait."""
        return await self._sets.unstow(staged, self.live)

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        await self._sets.release(staged)

    async def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, computed on what is live now."""
        async with self._generations.unchanged:
            return await self._sets.checksums(self.live)

    def structure(self) -> dict[str, tuple[Any, ...]]:
        """What the compiled model sees of each live leaf: shape, dtype, placement."""
        return {path: signature(leaf) for path, leaf in self._live_leaves().items()}

    @property
    def leaf_count(self) -> int:
        """How many leaves a set has."""
        return len(self._sets.layout.places)

    @property
    def last_exchange_seconds(self) -> float | None:
        """How long the scheduler thread took for the last change of weights."""
        return self._generations.last_exchange_seconds

    @property
    def upstream(self) -> Any:
        """sglang-jax's own Engine."""
        return self._parts.engine

    def facts(self) -> dict[str, Any]:
        """What runs, and on what, for people and logs."""
        return facts.facts_of(self._parts)

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self._sets.plan.tensors

    @property
    def ignorable(self) -> frozenset[str]:
        """Tensors a checkpoint may have though nothing loads them."""
        return self._sets.plan.ignorable

    @property
    def recompiles(self) -> int:
        """How often the serving threads waited for a compilation since the start."""
        return self._compiled.count

    @property
    def load(self) -> EngineLoad:
        """How busy it is with requests, noted by the scheduler thread a few times a second."""
        return self._scheduler.load.last

    @property
    def under_way(self) -> int:
        """How many prompts the engine is busy with."""
        return self._front.under_way

    def count_anew(self) -> None:
        """Forget what the start asked by itself: from now on it is clients who are counted."""
        self._withheld = Withheld()
        self._compiled.begin_anew()

    async def distrusted(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        return await self._sets.distrusted()

    async def died(self) -> NoReturn:
        """Raise EngineLost a moment after the engine died, or was found to hang."""
        await self._watch.until_lost()

    async def withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld for NaN; return how many were."""
        return await self._withheld.more_than(beyond)

    def is_turning(self, within: float) -> bool:
        """Whether the scheduler thread turned in the last `within` seconds, or is in a step."""
        return self._scheduler.is_turning(within)

    def lose(self, why: str) -> None:
        """Count it as lost: whoever waits for it hears EngineLost."""
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
        self._sets.drop_references()
        if self._shadow_pool is not None:
            self._shadow_pool.free()
        del self._scheduler, self._sets, self._shadow_pool, self._front, self._generations
        await uninterrupted(build.taken_apart(self._parts))

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Original]:
        """What is live, for a twin to copy."""
        check_running(self._watch)
        async with lent(self._generations, self._sets) as original:
            yield original

    async def begin(self, checkpoint: Checkpoint | None) -> None:
        """Do the part of the start that belongs on the event loop; `close` undoes a half of it."""
        self._front = self._make_front()
        first, self._first = self._first, None
        assert first is not None, "an engine begins once"
        layout, between = self._sets.layout, self._make_between()
        self._generations = Generations(
            self._scheduler, self._front, self._watch, live=first, layout=layout, between=between
        )
        await self._know_whole(first)
        await self.scrub()  # compiles the scrub: the first failed probe must not wait for that
        await self._ready_shadow(self.live)
        # From now on: a step of the start may compile for longer than a step may take later.
        looking = self._watch.look(self._parts.fault, build.watched(self._parts))
        self._tasks.append(asyncio.create_task(looking, name="engine watch"))
        self._compiled.begin_anew()
        frozen.freeze(self._parts)
        if checkpoint is not None:
            self._tasks.append(self._sets.compare_with(checkpoint, self.live))

    async def _ready_shadow(self, live: Staged) -> None:
        """Compile what weights are proven with: the first checkpoint must not wait for that."""
        pool = shadow_pool(self._scheduler, self._sets, live, self._canaries.longest)
        self._shadow_pool = pool
        if pool is not None and pool.has_own_programs and not self.cannot_overlap:
            with suppress(ProbeFailed):  # the start says what its weights answer
                await self.prove(live)

    def _live_leaves(self) -> dict[str, Any]:
        return self._sets.layout.named(self.live.weights.leaves)

    # --- what is another thing for an engine over several ranks -----------------------------------

    def _make_front(self) -> Answers:
        return Answers(self._parts.tokenizer_manager, self._watch, self._parts.to_loop)

    def _make_between(self) -> BetweenSteps:
        return BetweenSteps(self._scheduler, self._front, self._watch)

    async def _know_whole(self, first: Staged) -> None:
        """On a single host every leaf has been measured."""

    async def _ask_canaries(self, lane: int) -> None:
        """Past `generate`, which counts withheld answers: a probe's is no client's."""
        self._watch.check()
        await self._canaries.ask(partial(self._front.generate, lane=lane))
