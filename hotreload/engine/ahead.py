"""Compiles for sizes of batches before any comes, each once, beside requests under way."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.compiled_sizes import CompiledSizes
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.upstream.thread.rehearsal import Rehearsal
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.quiet import short_turns, yield_processors
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.engine")


class Ahead:
    """Knows what of an engine is still to be compiled; on the event loop."""

    def __init__(
        self,
        rehearsal: Rehearsal | None,
        compiled: CompiledSizes,
        watch: EngineWatch,
        at_once: int = 1,
    ) -> None:
        """Without a rehearsal the engine must be asked, and nothing is compiled here.

        `compiled` knows what its batches find programs for. Steps of `at_once` requests are
        compiled first: the start's own, smaller batches are padded to it.
        """
        self.at_once = at_once if rehearsal is not None else 1
        self._rehearsal = rehearsal
        self._compiled = compiled
        self._watch = watch
        self._proving: tuple[BatchSize, ...] = ()
        """Sizes that weights are proven with, where they are in a pool of another size."""
        self._one_at_a_time = asyncio.Lock()

    def can_prove_in(
        self,
        pool: ShadowPool,
        *probes: tuple[int, bool],
        questions: bool = False,
        candidate: int = 0,
    ) -> bool:
        """Compile for this pool, too, and batches of so many probes.

        True beside their number stands for log-probabilities, `questions` for the comparison of
        weights; a candidate's prompts may have so many tokens in all. False if it cannot.
        """
        if self._rehearsal is None:
            return False
        self._rehearsal.also_in(pool.describe())
        found = [
            replace(size, has_logprobs=has_logprobs)
            for prompts, has_logprobs in probes
            for size in self._sizes_in(pool, prompts)
        ]
        if questions:
            found += self._sizes_in(pool, SHADOW_ROWS, is_noted=True)
        found = [replace(size, is_shadow=True) for size in found]
        if candidate:
            is_shadow = pool.candidate_tokens == pool.tokens  # else its pool is like clients'
            sizes = self._sizes_of(SHADOW_ROWS, candidate)
            found += [replace(size, is_shadow=is_shadow) for size in sizes]
        self._proving = tuple(dict.fromkeys(_small_first(found)))
        return True

    def _sizes_in(
        self, pool: ShadowPool, prompts: int, *, is_noted: bool = False
    ) -> Iterator[BatchSize]:
        """Those of a batch asked in this pool: a step, and a piece of the smallest size."""
        places = pool.places_of(is_noted=is_noted)
        rows = pool.rows_of(prompts, is_noted=is_noted)
        step, *_, piece = self._sizes_of(rows, pool.page)
        if places:
            step = replace(step, cached=min(places, step.cached))
            piece = replace(piece, requests=step.requests, cached=step.cached)
        yield from (replace(each, is_noted=is_noted) for each in (step, piece))

    def _sizes_of(self, prompts: int, tokens: int) -> Iterator[BatchSize]:
        """Those of a batch of probes: all its steps are padded to the size of the first."""
        assert self._rehearsal is not None
        sizes = _small_first(self._rehearsal.sizes(prompts, tokens))
        yield [size for size in sizes if not size.is_prompt][-1]
        yield from (size for size in sizes if size.is_prompt)

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """List those for up to so many requests, and for prompts of so many tokens.

        First comes the one in which the most requests are answered, since smaller batches can be
        padded to it; then prompts, then the sizes of proofs, then the sizes between, and prompts
        that name fewer places.
        """
        if self._rehearsal is None or not most:
            return list(self._proving)
        found = _small_first(self._rehearsal.sizes(most, longest))
        steps = [size for size in found if not size.is_prompt]
        prompts = [size for size in found if size.is_prompt]
        fewer = self._rehearsal.with_fewer_places(prompts)
        return [*steps[-1:], *prompts, *self._proving, *steps[:-1], *fewer]

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Keep batches from now on to sizes that are compiled for, or to those no longer."""
        self._compiled.is_kept_to = is_kept and self._rehearsal is not None

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a size, unless that is done; requests under way go on."""
        self._watch.check()
        await self._compile_once(size)

    async def _compile_once(self, size: BatchSize) -> None:
        assert self._rehearsal is not None, "there are no sizes where there is none"
        work = partial(_compile_quietly, self._rehearsal, size)
        name = "compiling for a size of batches"
        async with self._one_at_a_time:
            if size not in self._compiled.sizes:
                await in_thread(lambda cancel: work(), leave_as=name, is_read=False)
                self._compiled.sizes.add(size)

    async def compile_first(self, prompts: int, tokens: int) -> None:
        """Compile for so many prompts of so many tokens in all, and a step, beside each other.

        Once: the start's first answers wait for it. If it fails, they compile for themselves.
        """
        if self._rehearsal is None or self._compiled.sizes:
            return
        step, *_, prompt = self._sizes_of(max(prompts, self.at_once), tokens)
        try:
            await asyncio.gather(*map(self._compile_at_once, (step, prompt)))
        except Exception as fault:
            log.warning("engine.not_compiled_ahead", extra={"why": str(fault)})

    async def _compile_at_once(self, size: BatchSize) -> None:
        assert self._rehearsal is not None, "there are no sizes where there is none"
        work, name = partial(self._rehearsal.compile_for, size), "compiling for the first answers"
        await in_thread(lambda cancel: work(), leave_as=name, is_read=False)
        self._compiled.sizes.add(size)

    async def until_ready_to_prove(self) -> None:
        """Return once what weights are proven with is compiled: clients would wait for it.

        If that fails they do: no reason to refuse a checkpoint.
        """
        try:
            for size in self._proving:
                await self._compile_once(size)
        except Exception as fault:
            log.warning("engine.not_compiled_ahead", extra={"why": str(fault)})
            self._proving = ()

    def drop_references(self) -> None:
        """Hold nothing of the engine any more: it ends."""
        self._rehearsal = None


def _compile_quietly(rehearsal: Rehearsal, size: BatchSize) -> None:
    """Compile in a thread of its own, which leaves processors and Python's lock to requests.

    Most of it is Python's: JAX traces the model, whatever its cache holds.
    """
    yield_processors()
    with short_turns():
        rehearsal.compile_for(size)


def _small_first(sizes: Iterable[BatchSize]) -> list[BatchSize]:
    return sorted(sizes, key=attrgetter("tokens"))
