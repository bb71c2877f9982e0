"""`life.running.RunningEngine` on a real sglang-jax: start here.

Joins the parts: `upstream.build` builds the engine, staging loads beside it, the scheduler thread
exchanges, answers serve. Knows nothing of gates, wishes, or files before they were checked.
"""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hotreload.engine import facts
from hotreload.engine.answering.answers import Answer, Answers
from hotreload.engine.answering.grammars import grammars_of
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import BUILT_IN, Probe, decide_verdict, request_for
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.engine.upstream import build, recompiles
from hotreload.engine.upstream.between import BetweenSteps
from hotreload.engine.upstream.nonfinite import Withheld
from hotreload.engine.upstream.scheduler import Wake, forget_caches, rewrite_pools
from hotreload.engine.upstream.watch import EngineWatch
from hotreload.engine.weights import staging
from hotreload.engine.weights.headroom import size_of
from hotreload.engine.weights.leaves import layout_of, measure, signature, zeroed
from hotreload.engine.weights.noise import perturb
from hotreload.engine.weights.room import Room
from hotreload.engine.weights.shadow import record_plan
from hotreload.engine.weights.slots import find_slot
from hotreload.engine.weights.spool import clear_leftovers
from hotreload.engine.weights.staging import Weights
from hotreload.errors import AnswerNonfinite, DrainTimedOut, EngineLost, ProbeFailed
from hotreload.threads import in_thread, uninterrupted
from hotreload.types import Checkpoint, Noise, Revision, Staged, TensorSpec


class SglangEngine:
    """One running engine and the weights that are live in it; made by `start`."""

    def __init__(
        self,
        parts: build.Parts,
        watch: EngineWatch,
        *,
        revision: Revision,
        spool: Path,
        probes: Sequence[Probe],
        max_drift: float | None,
    ) -> None:
        """Take over a built engine; this blocks, so `start` calls it in a thread."""
        self._parts = parts
        self._watch = watch
        self._spool = spool
        self._probes = tuple(probes) or (BUILT_IN,)
        self._max_drift = max_drift
        self._room = Room()
        self._tasks: list[asyncio.Task[None]] = []
        self._compiled_at_start = 0
        self._withheld = Withheld()
        self.last_exchange_seconds: float | None = None
        self._runner = parts.model_runner
        self._scheduler = parts.running_scheduler
        tokenizer = parts.tokenizer_manager.tokenizer
        self._grammars = grammars_of(self._scheduler.scheduler, tokenizer)
        can = facts.capabilities_of(parts, grammars=self._grammars is not None)
        self.capabilities: Capabilities = can
        self.limits: EngineLimits = facts.limits_of(parts)
        self._prompts = Prompts(tokenizer, self.limits, can, self._grammars)
        self._slot = find_slot(self._runner)
        self._layout = layout_of(self._runner.model)
        self._plan = record_plan(self._runner)
        self.weights_bytes = size_of(self._layout.named(self._slot.read()))
        self.leaf_count = len(self._layout.places)
        self.live = self._adopt(revision)
        self._prompts.check_probes(self._probes)

    @classmethod
    async def start(
        cls,
        *,
        model: Path,
        device: str,
        spool: Path,
        revision: Revision,
        tp: int = 1,
        dtype: str = "auto",
        load_format: str = "auto",
        args: Mapping[str, Any] | None = None,
        probes: Sequence[Probe] = (),
        max_drift: float | None = None,
        log_level: int = logging.WARNING,
        first_device: int = 0,
    ) -> "SglangEngine":
        """Start an engine that answers from `model`, whose weights are called `revision`.

        The loop stays free meanwhile. ConfigError names the setting to change.
        """
        watch = EngineWatch()
        clear_leftovers(spool)
        make_parts = partial(build.build, model=model, device=device, tp=tp, dtype=dtype)
        make_parts = partial(make_parts, load_format=load_format, args=args or {})
        make_parts = partial(make_parts, log_level=log_level, first_device=first_device)
        make_parts = partial(make_parts, report=watch.report)
        parts = await in_thread(lambda cancel: make_parts(), discard=build.discard)
        make = partial(cls, parts, watch, revision=revision, spool=spool, probes=probes)
        try:
            # If the start is cancelled, what was made here is taken apart with the parts.
            engine = await in_thread(lambda cancel: make(max_drift=max_drift))
        except BaseException:
            watch.close()
            await uninterrupted(build.taken_apart(parts))
            raise
        await engine._begin_or_close()
        return engine

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts, off the loop; BadRequest names what is wrong."""
        self._watch.check()
        return await self._prompts.prepare(request)

    async def generate(
        self, request: Mapping[str, Any] | Parsed
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a request, prepared or not: once, or piece by piece when it streams.

        Closing the iterator aborts, and returns when the engine has forgotten the request.
        EngineLost ends every answer, AnswerNonfinite one that the weights made NaN of.
        """
        self._watch.check()
        parsed = request if isinstance(request, Parsed) else await self.prepare(request)
        try:
            async with aclosing(self._front.generate(parsed)) as answers:
                async for answer in answers:
                    yield answer
        except AnswerNonfinite:
            self._withheld.note()
            raise

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load beside the live weights; a cancelled or failed call leaves nothing behind."""
        work = partial(
            staging.stage,
            checkpoint,
            model_runner=self._runner,
            layout=self._layout,
            live=self.live.weights,
            plan=self._plan,
            spool=self._spool,
            max_drift=self._max_drift,
        )
        return await self._staged(checkpoint.revision, work)

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        work = partial(perturb, noise, layout=self._layout, live=self.live.weights)
        return await self._staged(revision, work)

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live and return what was live; only while nothing is under way."""
        weights, before = staged.weights, self.live
        assert weights.leaves, "stowed or released weights cannot go live"
        values = staging.put_into(self._layout, weights)
        try:
            self.last_exchange_seconds = await self._between_steps.run(
                partial(self._swap, weights.leaves, values)
            )
        except (DrainTimedOut, EngineLost):
            raise
        except Exception as fault:
            self._watch.lose(f"the exchange broke off: {type(fault).__name__}: {fault}")
            self._watch.check()
        self.live = staged
        return before

    async def scrub(self) -> None:
        """Overwrite the KV pool with zeros and forget every cached prefix."""
        await self._between_steps.run(self._overwrite_pools)

    async def probe(self) -> None:
        """Ask the live weights every canary prompt; ProbeFailed lists each bad answer."""
        verdicts = [await self._verdict(probe) for probe in self._probes]
        bad = [verdict for verdict in verdicts if verdict is not None]
        if bad:
            raise ProbeFailed(bad[0], findings=bad)

    async def abort(self) -> None:
        """End every answer under way with the text it has so far."""
        self._front.abort_all()

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory."""
        move = partial(staging.stow, staged.weights, self._layout)
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged) -> Staged:
        """Bring stowed weights back; what is on the device already stays as it is."""
        if staged.weights.leaves:
            return staged
        back = partial(staging.unstow, staged.weights, self._layout, self._slot.read())
        name = f"the way back to {staged.revision}"
        return replace(staged, weights=await self._room.make(lambda cancel: back(), name=name))

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        assert staged is not self.live, "the live weights cannot be freed"
        await asyncio.to_thread(staged.weights.drop)

    async def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, computed on what is live now."""
        named = self._layout.named(self._slot.read())
        return (await asyncio.to_thread(measure, named)).checksums

    def structure(self) -> dict[str, tuple[Any, ...]]:
        """What the compiled model sees of each live leaf: shape, dtype, placement."""
        named = self._layout.named(self._slot.read())
        return {path: signature(leaf) for path, leaf in named.items()}

    def facts(self) -> dict[str, Any]:
        """What runs, and on what, for people and logs."""
        return facts.facts_of(self._parts)

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self._plan.tensors

    @property
    def ignorable(self) -> frozenset[str]:
        """Tensors a checkpoint may have though nothing loads them."""
        return self._plan.ignorable

    @property
    def recompiles(self) -> int:
        """How often the serving threads waited for a compilation since the start."""
        return recompiles.count_in(self._scheduler.serving) - self._compiled_at_start

    @property
    def under_way(self) -> int:
        """How many prompts the engine is busy with."""
        return self._front.under_way

    async def died(self) -> NoReturn:
        """Raise EngineLost a moment after the engine died, or was found to hang."""
        await self._watch.until_lost()

    async def withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld for NaN; return how many were."""
        return await self._withheld.more_than(beyond)

    def is_turning(self, within: float) -> bool:
        """Whether the scheduler thread turned in the last `within` seconds, or is in a step."""
        return self._scheduler.is_turning(within)

    def sigquit(self) -> None:
        """Count the engine as lost: SIGQUIT is how upstream says that a part of it failed."""
        self._watch.lose("the engine sent SIGQUIT: a part of it failed")

    async def close(self) -> None:
        """End the threads, close the sockets, free the device; a second call does nothing."""
        if self._watch.is_closed:
            return
        self._watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._front.close()
        if self._grammars is not None:
            self._grammars.close()
        self._scheduler.ask_to_stop()
        self._front.send(Wake())
        self.live.weights.drop()
        del self._runner, self._scheduler, self._slot, self._layout
        del self._front, self._between_steps
        await uninterrupted(build.taken_apart(self._parts))

    def _adopt(self, revision: Revision) -> Staged:
        """Make one of our sets of what upstream loaded, copied into memory of our own.

        Upstream's loader maps the files: before the copy, a rewritten file changes live weights.
        """
        leaves = list(self._slot.read())
        self._slot.rebind(leaves)
        staging.take_over(leaves, self._layout)
        return self._as_staged(revision, Weights(leaves, measure(self._layout.named(leaves))))

    async def _staged(self, revision: Revision, work: Callable[..., Weights]) -> Staged:
        name = f"the loading of {revision}"
        made = await self._room.make(lambda cancel: work(cancel=cancel), name=name, leave=True)
        return self._as_staged(revision, made)

    def _as_staged(self, revision: Revision, weights: Weights) -> Staged:
        measured = weights.measured
        known = (measured.fingerprint, measured.checksums, self.weights_bytes)
        return Staged(revision, weights, *known)

    async def _begin_or_close(self) -> None:
        try:
            await self._begin()
        except BaseException:
            await uninterrupted(self.close())
            raise

    async def _begin(self) -> None:
        """Do the part of the start that belongs on the event loop."""
        self._front = Answers(self._parts.tokenizer_manager, self._watch, self._parts.to_loop)
        self._between_steps = BetweenSteps(self._scheduler, self._front, self._watch)
        looking = self._watch.look(self._parts.fault, build.watched(self._parts))
        self._tasks.append(asyncio.create_task(looking, name="engine watch"))
        recompiles.start_counting()
        await self.scrub()  # compiles the scrub: the first failed probe must not wait for that
        self._compiled_at_start = recompiles.count_in(self._scheduler.serving)
        gc.collect()
        gc.freeze()  # an engine's parts live as long as it does: collections can skip them

    def _swap(self, leaves: list[Any], values: Sequence[tuple[Any, Any]]) -> float:
        """Runs on the scheduler thread: binds what was made before, and makes nothing."""
        started = time.perf_counter()
        self._slot.rebind(leaves)
        # The model too: it would hold the old weights in memory, and LoRA on main makes the
        # live list anew from it.
        for variable, leaf in values:
            variable.set_raw_value(leaf)
        forget_caches(self._scheduler.scheduler)
        return time.perf_counter() - started

    def _overwrite_pools(self) -> None:
        rewrite_pools(self._runner, zeroed)
        forget_caches(self._scheduler.scheduler)

    async def _verdict(self, probe: Probe) -> str | None:
        asked = self._prompts.parse(request_for(probe))  # at once: it must not queue with clients
        self._watch.check()
        try:
            # Past `self.generate`, which counts withheld answers: a probe's is no client's.
            async with aclosing(self._front.generate(asked)) as answers:
                answer = await anext(answers)
        except AnswerNonfinite as bad:
            return f"probe {probe.prompt!r}: {bad}"
        assert isinstance(answer, dict)
        return decide_verdict(probe, answer)
