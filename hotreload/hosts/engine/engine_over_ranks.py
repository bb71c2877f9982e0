"""The engine of several ranks, on rank 0: a `RunningEngine` whose changes are made on all ranks.

Requests and facts of the engine are those of rank 0's own part.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NoReturn

from hotreload.behaviour import Answered, Question
from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.errors import BadRequest, CheckpointIncompatible, HotReloadError
from hotreload.hosts.all_ranks import AllRanks
from hotreload.hosts.bounds import revision_fields
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.steps import (
    EXCHANGE,
    FIRST_SET,
    FLIP,
    FLUSH,
    LIVE,
    MEASURE,
    PROVE,
    RELEASE,
    RETIRE,
    SCRUB,
    STAGE,
    StepSeconds,
)
from hotreload.hosts.vote import Chair, check_same
from hotreload.threads import run_to_end
from hotreload.types import (
    Checkpoint,
    EngineLoad,
    HowFar,
    Noise,
    Revision,
    Staged,
    TensorSpec,
)


class EngineOverRanks:
    """The engine of several ranks; `core.ports.Engine` has the promises of its methods."""

    def __init__(self, own: RankEngine, chair: Chair, seconds: StepSeconds) -> None:
        self._own = own
        self._ranks = AllRanks(own, chair, seconds)
        self._names: dict[Any, str] = {own.live.weights: FIRST_SET}
        """The ranks' name for each set of weights."""

    # --- what all ranks do ------------------------------------------------------------------------

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load a checkpoint, each rank its share; TryAgain unless all have one fingerprint."""
        async with self._ranks.step(STAGE, revision_fields(checkpoint.revision)) as step:
            work, free = partial(self._own.stage, checkpoint), self._own.release
            staged, ballots = await step.do_everywhere(work, free=free)
            try:
                check_same(ballots, "fingerprint", staged.fingerprint)
            except HotReloadError:
                await run_to_end(_all_of(free(staged), step.give_up()))
                raise
            self._names[staged.weights] = str(step.number)
            return staged

    async def prove(self, staged: Staged) -> None:
        """Send the canary prompts to staged weights; every rank computes the answers."""
        async with self._ranks.step(PROVE, self._set_name(staged)) as step:
            await step.do_everywhere(partial(self._own.prove, staged))

    async def flip(self, staged: Staged) -> Staged:
        """Make `staged` answer new requests, from the same turn on all ranks; return the last."""
        async with self._ranks.step(FLIP, self._set_name(staged)) as step:
            before, _ = await step.do_everywhere(partial(self._own.flip, staged), staged)
            return before

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live on all ranks in one turn, and return the weights before."""
        async with self._ranks.step(EXCHANGE, self._set_name(staged)) as step:
            before, _ = await step.do_everywhere(partial(self._own.exchange, staged), staged)
            return before

    async def scrub(self) -> None:
        """Overwrite everything that failed weights computed, on every rank."""
        async with self._ranks.step(SCRUB) as step:
            await step.do_everywhere(self._own.scrub)

    async def retire(self, staged: Staged) -> None:
        """Wait until no request is under way under these weights; none holds a lease on them."""
        async with self._ranks.step(RETIRE, self._set_name(staged)) as step:
            await step.collect_votes()
            # Other steps may come meanwhile.
            ending = asyncio.create_task(self._own.retire(staged))
        try:
            await ending
        finally:
            ending.cancel()

    async def release(self, staged: Staged) -> None:
        """Free spare weights on every rank."""
        async with self._ranks.step(RELEASE, self._set_name(staged)) as step:
            self._names.pop(staged.weights)
            await step.do_everywhere(partial(self._own.release, staged))

    async def checksums(self) -> dict[str, int]:
        """Return each live leaf's checksum over all ranks."""
        async with self._ranks.step(MEASURE) as step:
            found, _ = await step.do_everywhere(self._own.checksums)
            return found

    async def flush(self) -> int:
        """Drop cached prefixes that no request under way uses, on all ranks in one turn."""
        async with self._ranks.step(FLUSH) as step:
            tokens, _ = await step.do_everywhere(self._own.flush)
            return tokens

    async def send_live(self, about: Mapping[str, str]) -> None:
        """Have every other rank record the live generation, as rank 0 has done."""
        async with self._ranks.step(LIVE, about) as step:
            await step.collect_votes()

    def _set_name(self, staged: Staged) -> Mapping[str, str]:
        return {"set": self._names[staged.weights]}

    # --- what an engine over several hosts cannot -------------------------------------------------

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Refuse to put noise on the weights."""
        raise _cannot("put noise on its weights")

    async def twin(self, staged: Staged) -> Staged:
        """Refuse to copy another engine's weights."""
        raise _cannot("copy another engine's weights")

    async def first_values(self, name: str, most: int) -> list[Any]:
        """Refuse to show weights: this host has only a part of them."""
        raise BadRequest("an engine over several hosts ([engine] nnodes) cannot show its weights")

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Return the memory that rank 0 lacks, in words; another rank reports its own at a load."""
        return await self._own.lacks_room(checkpoint)

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Return the bytes on all ranks that each set takes beside those before it."""
        return self._own.held_bytes(sets)

    @property
    def cannot_compare(self) -> str:
        """The reason why weights are not compared over several hosts."""
        return "over several hosts the other ranks know nothing of answers that are given"

    async def answer_unseen(
        self, staged: Staged, questions: Sequence[Question]
    ) -> Sequence[Answered]:
        """Refuse to compare weights."""
        raise _cannot("compare weights")

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Return: no question is ever sent."""

    def askable(self, prepared: Parsed) -> Mapping[int, Sequence[int]]:
        """Return no prompt: without a comparison none is sent again."""
        return {}

    def as_candidate(self, staged: Staged) -> AbstractAsyncContextManager[None]:
        """Refuse to have candidates answer: the other ranks have no lane without clients."""
        raise _cannot("have new weights answer a command")

    async def stow(self, staged: Staged) -> Staged:
        """Refuse to keep weights in host memory."""
        raise _cannot("keep weights in host memory")

    async def unstow(self, staged: Staged) -> Staged:
        """Return the weights unchanged: none were ever stowed."""
        return staged

    # --- what rank 0 does alone: the others compute what it asks ----------------------------------

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._own.live

    @property
    def cannot_overlap(self) -> str | None:
        """The reason why two sets of weights cannot answer side by side; None if they can."""
        return self._own.cannot_overlap

    @property
    def spares_wait_on_host(self) -> bool:
        """False: spare weights wait beside the live ones, on every rank."""
        return False

    @property
    def staging_progress(self) -> HowFar | None:
        """The progress of this rank's load; None while nothing is loaded."""
        return self._own.staging_progress

    async def probe(self, *, briefly: bool = False) -> None:
        """Send the canary prompts to the live weights; `briefly` for the first tokens only."""
        await self._own.probe(briefly=briefly)

    async def wait_for_withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld for NaN; return their count."""
        return await self._own.wait_for_withheld(beyond)

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way, or only those under these weights."""
        await self._own.abort(staged)

    async def abort_asked(self, rid: str | None) -> int:
        """End the answers of one client's `rid`, or of all clients; return how many ended."""
        return await self._own.abort_asked(rid)

    def lose(self, why: str) -> None:
        """Mark the engine as lost: every call that waits for it raises EngineLost."""
        self._own.lose(why)

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts; BadRequest names the fault."""
        return await self._own.prepare(request)

    @property
    def encodes_as(self) -> str:
        """The name of the copy of the prompt encoder; empty if none was made."""
        return self._own.encodes_as

    async def encoder_copy(self) -> EncoderCopy | None:
        """Return a copy of the prompt encoder, which is alike on every rank."""
        return await self._own.encoder_copy()

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Return the ids of texts, or of a chat by the model's template; BadRequest if invalid."""
        return await self._own.tokenize(asked)

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """Return the text of each list of ids; BadRequest names an unknown id."""
        return await self._own.detokenize(ids, skip_special=skip_special)

    def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a prepared request by these weights, or by the live ones."""
        return self._own.generate(prepared, weights)

    @property
    def limits(self) -> EngineLimits:
        """The engine's limits on the size of prompts, answers and batches."""
        return self._own.limits

    @property
    def recompiles(self) -> int:
        """The number of compilations that rank 0's serving threads have waited for."""
        return self._own.recompiles

    @property
    def load(self) -> EngineLoad:
        """The engine's load of requests."""
        return self._own.load

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """Return no size: rank 0 cannot compile without the other ranks, which sample along."""
        return self._own.sizes_to_compile(most, longest)

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a size of batches, on rank 0."""
        await self._own.compile_for(size)

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Do nothing: the other ranks would have to keep to the same sizes."""
        self._own.keep_to_compiled(is_kept)

    def count_anew(self) -> None:
        """Reset the counters: requests of the start do not count."""
        self._own.count_anew()

    def facts(self) -> Mapping[str, Any]:
        """Return the engine's versions and devices."""
        return self._own.facts()

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Return every tensor that a checkpoint must have; a shape is None if unknown."""
        return self._own.expected_tensors()

    def is_turning(self, within: float) -> bool:
        """Return whether rank 0 was seen at work within so many seconds, or is in a step."""
        return self._own.is_turning(within)

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these probes; ConfigError, and no change, if one is impossible."""
        self._own.judge_by(probes, max_drift)

    async def wait_for_distrust(self) -> str:
        """Wait until a comparison finds our loader's weights wrong; return the reason."""
        return await self._own.wait_for_distrust()

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""
        await self._own.wait_until_dead()

    async def close(self) -> None:
        """End rank 0's part; each other rank ends its own part, and then leaves."""
        await self._own.close()


def _cannot(do: str) -> CheckpointIncompatible:
    return CheckpointIncompatible(f"an engine over several hosts ([engine] nnodes) cannot {do}")


async def _all_of(*works: Awaitable[None]) -> None:
    for work in works:
        await work
