"""Asks weights where nobody sees the answers: before they answer anybody, and of what is live.

Canary prompts say whether they answer at all; other questions, how they differ from the live ones.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

from hotreload.behaviour import HEARD_ANSWER, HEARD_TOKENS, Answered, Question
from hotreload.engine import facts
from hotreload.engine.ahead import Ahead
from hotreload.engine.answering.answers import Answer, all_ended
from hotreload.engine.answering.canaries import Batches, Canaries
from hotreload.engine.answering.grammars import grammars_of
from hotreload.engine.answering.items import USUAL_TOKENS, Item, Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.requests import TOO_LONG
from hotreload.engine.answering.unseen import (
    UnseenBatch,
    UnseenItem,
    as_items,
    in_batches,
    largest_batch,
)
from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.options import PROBES_ALONE, UnseenOptions
from hotreload.engine.releasing import ReleasingEngine
from hotreload.engine.upstream.parts import Parts
from hotreload.engine.upstream.thread.rehearsal import find_rehearsal
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weights.sets import First, StagingOptions
from hotreload.errors import BadRequest, ConfigError, ProbeFailed
from hotreload.threads import in_thread, run_to_end
from hotreload.types import Staged

log = logging.getLogger("hotreload.engine")

NOT_ASKED_FOR = "it was started without [compare] report"
HURRY_EVERY = 0.25
"""Seconds between two looks if a proof ends in time."""
MOST_LOGITS = 2**30
"""The most bytes of logits of one piece of prompts, each of whose tokens has some: beside both
weights there may be no room for more."""
COME_AND_GO = 0
"""In the place of a number of prompts that are asked together: nobody knows it."""


class ProvingEngine(ReleasingEngine):
    """An engine whose weights can be asked, each set by itself.

    What its verbs promise stands in `core.ports.Engine`.
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
        """Take over a built engine; it blocks.

        `unseen` is what it must have room for; for steps of `at_once` requests is compiled first.
        """
        super().__init__(parts.running_scheduler, watch, first, terms)
        scheduler = parts.running_scheduler
        self._ahead = Ahead(find_rehearsal(scheduler), scheduler.compiled_sizes, at_once)
        tokenizer = facts.tokenizer_of(parts)
        grammars = grammars_of(self._scheduler.scheduler, tokenizer)
        self.limits = facts.limits_of(parts)
        self.capabilities = facts.capabilities_of(parts, grammars=grammars is not None)
        calling = facts.calling_of(parts, tokenizer, self.capabilities)
        self._prompts = Prompts(tokenizer, self.limits, self.capabilities, grammars, calling)
        self._canaries = Canaries(probes, self._prompts)
        self._unseen = unseen
        self._no_comparison = None if unseen.compares else NOT_ASKED_FOR
        """The reason why no questions are asked, though there is a lane for them."""
        self._room_to_compare = 0
        """Tokens that questions may take together, from the start on."""
        self._heard_tokens = 0
        """The most tokens of a request that can be asked unseen with others; 0: none can."""

    @property
    def cannot_compare(self) -> str | None:
        """The reason why weights that answer nobody cannot be asked questions; None if they can."""
        return self._no_comparison or self.cannot_overlap

    def askable(self, prepared: Parsed) -> Mapping[int, Sequence[int]]:
        """Return the ids of each prompt, by the index of its answer, that can be asked unseen."""
        room = self._heard_tokens - HEARD_ANSWER if self.cannot_compare is None else 0
        prompts = ((index, item.input_ids) for index, item in enumerate(prepared.items))
        return {index: ids for index, ids in prompts if len(ids) <= room}

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights every canary prompt, in a lane that nobody else is answered in."""
        asked = self._canaries.in_batches()
        steps = sum(max(probe.max_new_tokens for probe in batch) for batch in asked)
        async with self._shadow(staged, len(asked[0])) as lane, self._in_time(lane, steps):
            await self._ask_canaries(asked, lane)

    @asynccontextmanager
    async def _in_time(self, lane: int, steps: int) -> AsyncIterator[None]:
        """Have so many steps of this lane end in `[reload] prove_within`, as far as shares do it.

        Over several hosts all decide the same, and by no clock.
        """
        hurrying = []
        if self._scheduler.turns is None:
            hurrying.append(asyncio.create_task(self._hurry(lane, steps)))
        try:
            yield
        finally:
            await run_to_end(all_ended(hurrying))

    async def _hurry(self, lane: int, steps: int) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(HURRY_EVERY)
            hurry = partial(self._scheduler.lanes.hurry, lane, steps, time.monotonic() - began)
            await self._between.at_a_turn(hurry)

    async def answer_unseen(
        self, staged: Staged, questions: Sequence[Question]
    ) -> Sequence[Answered]:
        """Ask weights questions, in a lane that nobody else is answered in.

        Say what they answered and expected.
        """
        found: list[Answered] = []
        for batch in in_batches(await self._as_items(questions), self._find_room):
            prompts = len(batch.request.items)
            waits = staged.weights.lane is None  # to go live: what answers requests does not
            async with (
                self._shadow(staged, prompts, batch.along) as lane,
                self._in_time(lane, batch.steps) if waits else nullcontext(),
                aclosing(self._front.generate(batch.request, lane)) as answers,
            ):
                answer = await anext(answers)
            assert isinstance(answer, list)
            found += await _read(batch, answer)
        return found

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Return if all could be asked of new weights; ConfigError names one that cannot be."""
        if self.cannot_compare is not None:
            return
        asked = await self._as_items(questions)
        for question, item in zip(questions, asked, strict=True):
            if not self._find_room([item.needs]):
                raise ConfigError(
                    f"[compare] corpus: {question.place}: takes {item.needs} tokens with its "
                    f"answer, and since the start there is room for {self._room_to_compare}; "
                    "restart hotreload for it"
                )

    @asynccontextmanager
    async def as_candidate(self, staged: Staged) -> AsyncIterator[None]:
        """Have staged weights answer `generate`, in a lane that nobody else is answered in."""
        async with self._shadow(staged, COME_AND_GO) as lane:
            staged.weights.lane = lane
            try:
                yield
            finally:
                staged.weights.lane = None
                self._front.abort(lambda each: each == lane)

    def _fit_for_candidate(self, parsed: Parsed) -> Parsed:
        """The request as far as there is room; it is none that clients end, or that is theirs."""
        assert self._shadow_pool is not None, "a candidate answers in it"
        most = self._shadow_pool.longest
        return replace(parsed, items=tuple(_within(most, item) for item in parsed.items))

    async def probe(self, *, briefly: bool = False) -> None:
        """Ask the live weights every canary prompt; ProbeFailed lists each bad answer.

        `briefly` asks only how each answer begins: that it does, and by numbers.
        """
        await self._ahead.compile_first(*self._canaries.first_size)
        await self._ask_canaries(self._canaries.in_batches(briefly=briefly), self._lane(None))

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._canaries.change(probes)
        self.max_drift = max_drift

    async def until_ready_to_stage(self) -> None:
        """Return once what is staged could be proven at once, too."""
        await self._ahead.until_ready_to_prove()
        await super().until_ready_to_stage()

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """Sizes of batches that it can compile for beside its answers, the most needed first.

        Of up to so many requests, and of prompts of so many tokens, and those that checkpoints are
        proven with. None where it must be asked.
        """
        return self._ahead.sizes(most, longest)

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Take in what finds its programs compiled, from now on; or whatever comes, again."""
        self._ahead.keep_to_compiled(is_kept)

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a size of batches; nothing is computed, and those under way go on."""
        self._watch.check()
        await self._ahead.compile_for(size)

    async def _ready_shadow(self) -> None:
        """Decide where weights are proven; what must be asked for that is compiled here.

        Or the first checkpoint would have all wait for it.
        """
        proving, comparing = self._canaries.needs, await self._needs_to_compare()
        heard = [self._longest_heard()] * SHADOW_ROWS if self._hears else []
        candidate = [self._unseen.candidate_tokens // SHADOW_ROWS] * SHADOW_ROWS
        self._decide_where_to_prove(max(proving, comparing, heard, candidate, key=sum))
        pool = self._shadow_pool
        if pool is None or self.cannot_overlap:
            return
        self._make_room_to_compare(pool, comparing)
        batches = [(len(proving), sum(proving), False)]
        if logprobs := self._canaries.ask_logprobs:  # no start that asks briefly asks for them
            batches += [(len(proving), sum(proving), True)]
        batches += [(SHADOW_ROWS, sum(candidate), False)] if any(candidate) else []
        compares = self._no_comparison is None
        # Else a single probe has been asked, as it is at every start, in batches of this size.
        is_another_size = pool.has_own_programs or len(proving) > 1 or logprobs
        is_another_size = is_another_size or self._ahead.at_once > 1
        if not (is_another_size or any(candidate) or compares) or self._ahead.can_prove_in(
            pool, *batches, questions=compares
        ):
            return
        if compares:
            self._compare_nothing("clients would wait for the compiling of its batches")
        if is_another_size:
            with suppress(ProbeFailed):  # the start says what its weights answer
                await self.prove(self.live)

    async def _needs_to_compare(self) -> Sequence[int]:
        """Tokens that each of a batch of questions takes; none where they cannot be asked."""
        if self._no_comparison is not None:
            return ()
        corpus, prompts = self._unseen.corpus, self._prompts
        try:
            return await in_thread(lambda cancel: largest_batch(corpus, prompts))
        except BadRequest as why:
            self._compare_nothing(str(why))
            return ()

    @property
    def _hears(self) -> bool:
        """True if weights are compared by what clients asked, too."""
        return self._no_comparison is None and self._unseen.hears

    def _make_room_to_compare(self, pool: ShadowPool, comparing: Sequence[int]) -> None:
        """Decide what may be asked together in this pool, which may be too small for it."""
        self._room_to_compare = sum(comparing)
        if self._no_comparison is None and not self._find_room(comparing[-1:]):
            longest = f"a question takes {comparing[-1]} with its answer"
            self._compare_nothing(f"the KV pool holds {pool.tokens} tokens, and {longest}")
        sizes, _, _ = self._scheduler.scheduler.tp_worker.get_precompile_paddings()
        if 4 * min(sizes) * self.limits.vocabulary > MOST_LOGITS and self._no_comparison is None:
            size = f"the smallest size of prompts is {min(sizes)} tokens"
            self._compare_nothing(f"{size}; precompile_token_paddings needs a smaller one")
        if self._hears:
            self._hear_in(pool)

    async def _as_items(self, questions: Sequence[Question]) -> list[UnseenItem]:
        """Off the loop: long texts would hold it up."""
        prompts = self._prompts
        return await in_thread(lambda cancel: as_items(questions, prompts))

    def _find_room(self, needs: Sequence[int]) -> bool:
        """True if questions that take so many tokens can be asked together."""
        pool = self._shadow_pool
        assert pool is not None, self.cannot_overlap
        return sum(needs) <= self._room_to_compare and pool.holds(needs)

    def _longest_heard(self) -> int:
        """Tokens of the longest request that is heard, if there were room for a batch of such."""
        return min(HEARD_TOKENS, self.limits.total_tokens - 1)

    def _hear_in(self, pool: ShadowPool) -> None:
        """Hear what finds room in this pool in a whole batch of such, if anything does."""
        longest = min(self._longest_heard(), pool.room_for_each_of(SHADOW_ROWS))
        if longest > HEARD_ANSWER:
            self._heard_tokens = longest
            self._room_to_compare = max(self._room_to_compare, longest * SHADOW_ROWS)
        else:
            why = f"the KV pool holds {pool.tokens} tokens"
            log.warning("behaviour.cannot_hear", extra={"why": why})

    def _compare_nothing(self, why: str) -> None:
        """Give the comparison up, for as long as this engine runs."""
        self._no_comparison = why
        log.warning("behaviour.cannot_compare", extra={"why": why})

    async def _ask_canaries(self, asked: Batches, lane: int) -> None:
        """Past `generate`, which counts withheld answers: a probe's is no client's."""
        self._watch.check()
        await self._canaries.ask(asked, partial(self._front.generate, lane=lane))


async def _read(batch: UnseenBatch, answers: Sequence[Answer]) -> Sequence[Answered]:
    """Read what was answered off the loop, for which clients wait."""
    return await in_thread(lambda cancel: batch.answered(answers), is_read=False)


def _within(most: int, item: Item) -> Item:
    """An answer ends where there is no more room, as it does at the context's end."""
    if (left := most - len(item.input_ids)) < 1:
        raise BadRequest(
            f"the prompt has {len(item.input_ids)} tokens, and where a candidate answers there is "
            f"room for {most} with the answer ([command] tokens)",
            code=TOO_LONG,
        )
    wanted = item.sampling_params.get("max_new_tokens", USUAL_TOKENS)
    sampling = {**item.sampling_params, "max_new_tokens": min(wanted, left)}
    return replace(item, sampling_params=sampling, is_probe=True)
