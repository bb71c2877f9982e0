"""`RunningEngine` on rank 0: a change of its own part of the engine is made on all ranks.

Changes go over all ranks; requests, and the facts of the engine, are rank 0's own.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NoReturn

from hotreload.behaviour.asked import Answered, Question
from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.errors import BadRequest, CheckpointIncompatible, HotReloadError
from hotreload.hosts.all_ranks import AllRanks
from hotreload.hosts.bounds import words_of
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


class OverRanks:
    """The engine of several ranks as the core knows one.

    What its verbs promise stands in `core.ports.Engine`.
    """

    def __init__(self, own: RankEngine, chair: Chair, seconds: StepSeconds) -> None:
        self._own = own
        self._ranks = AllRanks(own, chair, seconds)
        self._names: dict[Any, str] = {own.live.weights: FIRST_SET}
        """The ranks' name for each set of weights."""

    # --- what all ranks do ------------------------------------------------------------------------

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Have every rank load its share; what they load has one fingerprint."""
        async with self._ranks.step(STAGE, words_of(checkpoint.revision)) as step:
            work, free = partial(self._own.stage, checkpoint), self._own.release
            staged, ballots = await step.all_did(work, free=free)
            try:
                check_same(ballots, "fingerprint", staged.fingerprint)
            except HotReloadError:
                await run_to_end(_all_of(free(staged), step.give_up()))
                raise
            self._names[staged.weights] = str(step.number)
            return staged

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts; every rank computes the answers."""
        async with self._ranks.step(PROVE, self._set_name(staged)) as step:
            await step.all_did(partial(self._own.prove, staged))

    async def flip(self, staged: Staged) -> Staged:
        """Have `staged` answer new requests from one turn of all ranks on."""
        async with self._ranks.step(FLIP, self._set_name(staged)) as step:
            before, _ = await step.all_did(partial(self._own.flip, staged), staged)
            return before

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live on all ranks in one turn, and return what was live."""
        async with self._ranks.step(EXCHANGE, self._set_name(staged)) as step:
            before, _ = await step.all_did(partial(self._own.exchange, staged), staged)
            return before

    async def scrub(self) -> None:
        """Overwrite all that failed weights computed, on every rank."""
        async with self._ranks.step(SCRUB) as step:
            await step.all_did(self._own.scrub)

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under weights on which no request holds a lease."""
        async with self._ranks.step(RETIRE, self._set_name(staged)) as step:
            await step.others_did()
            # Others may take their steps meanwhile.
            ending = asyncio.create_task(self._own.retire(staged))
        try:
            await ending
        finally:
            ending.cancel()

    async def release(self, staged: Staged) -> None:
        """Free spare weights on every rank."""
        async with self._ranks.step(RELEASE, self._set_name(staged)) as step:
            self._names.pop(staged.weights)
            await step.all_did(partial(self._own.release, staged))

    async def checksums(self) -> dict[str, int]:
        """Compute each live leaf's checksum over every rank."""
        async with self._ranks.step(MEASURE) as step:
            found, _ = await step.all_did(self._own.checksums)
            return found

    async def flush(self) -> int:
        """Forget the cached prefixes that nothing under way uses, on all ranks in one turn."""
        async with self._ranks.step(FLUSH) as step:
            tokens, _ = await step.all_did(self._own.flush)
            return tokens

    async def tell_live(self, about: Mapping[str, str]) -> None:
        """Have every other rank record the live generation, as this one has done by itself."""
        async with self._ranks.step(LIVE, about) as step:
            await step.others_did()

    def _set_name(self, staged: Staged) -> Mapping[str, str]:
        return {"set": self._names[staged.weights]}

    # --- what an engine over several hosts cannot -------------------------------------------------

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Refuse it."""
        raise _cannot("put noise on its weights")

    async def twin(self, staged: Staged) -> Staged:
        """Refuse it."""
        raise _cannot("copy another engine's weights")

    async def first_values(self, name: str, most: int) -> list[Any]:
        """Refuse it: this host has a part of them alone."""
        raise BadRequest("an engine over several hosts ([engine] nnodes) cannot show its weights")

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        """Say what rank 0 lacks: a rank that lacks more says so when it is to load."""
        return await self._own.lacks_room(checkpoint)

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Bytes of all ranks that each takes beside those before it."""
        return self._own.held_bytes(sets)

    @property
    def cannot_compare(self) -> str:
        """The reason why weights are not compared over several hosts."""
        return "over several hosts the other ranks know nothing of answers that are given"

    async def answer_unseen(
        self, staged: Staged, questions: Sequence[Question]
    ) -> Sequence[Answered]:
        """Refuse it."""
        raise _cannot("compare weights")

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Return: none is ever asked."""

    def askable(self, prepared: Parsed) -> Mapping[int, Sequence[int]]:
        """None: without a comparison no prompt is asked again."""
        return {}

    def as_candidate(self, staged: Staged) -> AbstractAsyncContextManager[None]:
        """Refuse it: the other ranks know of no lane that clients do not reach."""
        raise _cannot("have new weights answer a command")

    async def stow(self, staged: Staged) -> Staged:
        """Refuse it."""
        raise _cannot("keep weights in host memory")

    async def unstow(self, staged: Staged) -> Staged:
        """Return them: they are where spare ones wait, for none was ever stowed."""
        return staged

    # --- what rank 0 does alone: the others compute what it asks ----------------------------------

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._own.live

    @property
    def cannot_overlap(self) -> str | None:
        """Reason why two sets of weights cannot answer side by side in it; None when they can."""
        return self._own.cannot_overlap

    @property
    def spares_wait_on_host(self) -> bool:
        """False: they wait beside the live ones, on every rank."""
        return False

    @property
    def staging(self) -> HowFar | None:
        """Progress of this rank with a checkpoint; None while it is with none."""
        return self._own.staging

    async def probe(self, *, briefly: bool = False) -> None:
        """Ask the live weights the canary prompts, or only how their answers begin."""
        await self._own.probe(briefly=briefly)

    async def wait_for_withheld(self, beyond: int) -> int:
        """Wait until more answers than these were withheld as no numbers; how many."""
        return await self._own.wait_for_withheld(beyond)

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way (under these weights)."""
        await self._own.abort(staged)

    async def abort_asked(self, rid: str | None) -> int:
        """End the answers to prompts that clients call so, or to all of theirs; how many."""
        return await self._own.abort_asked(rid)

    def lose(self, why: str) -> None:
        """Count it as lost: every call that waits for it ends with EngineLost."""
        self._own.lose(why)

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts; BadRequest names the fault."""
        return await self._own.prepare(request)

    @property
    def encodes_as(self) -> str:
        """The name of the copy of what encodes prompts; empty if none was made."""
        return self._own.encodes_as

    async def encoder_copy(self) -> EncoderCopy | None:
        """Make a copy of what encodes prompts: every rank's does it alike."""
        return await self._own.encoder_copy()

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Encode texts, or a chat by the model's template; BadRequest names the fault."""
        return await self._own.tokenize(asked)

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """The text of each list of ids; BadRequest names an id that there is not."""
        return await self._own.detokenize(ids, skip_special=skip_special)

    def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a prepared request by these weights, or by the live ones."""
        return self._own.generate(prepared, weights)

    @property
    def limits(self) -> EngineLimits:
        """Limits of how large things may be in it."""
        return self._own.limits

    @property
    def recompiles(self) -> int:
        """Count of the compilations that rank 0's serving threads waited for since the start."""
        return self._own.recompiles

    @property
    def load(self) -> EngineLoad:
        """Figures of how busy it is with requests."""
        return self._own.load

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """None: it must be asked, for other ranks sample along."""
        return self._own.sizes_to_compile(most, longest)

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a size of batches, on rank 0."""
        await self._own.compile_for(size)

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Do nothing: other ranks would have to take in the same."""
        self._own.keep_to_compiled(is_kept)

    def count_anew(self) -> None:
        """Reset the counters: requests of the start do not count."""
        self._own.count_anew()

    def facts(self) -> Mapping[str, Any]:
        """Return the engine's versions and devices, for people and logs."""
        return self._own.facts()

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self._own.expected_tensors()

    def is_turning(self, within: float) -> bool:
        """Say whether rank 0 was seen at work within so many seconds, or is in a step."""
        return self._own.is_turning(within)

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._own.judge_by(probes, max_drift)

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        return await self._own.wait_for_distrust()

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""
        await self._own.wait_until_dead()

    async def close(self) -> None:
        """End rank 0's part; each rank ends its own, and leaves the others afterwards."""
        await self._own.close()


def _cannot(do: str) -> CheckpointIncompatible:
    return CheckpointIncompatible(f"an engine over several hosts ([engine] nnodes) cannot {do}")


async def _all_of(*works: Awaitable[None]) -> None:
    for work in works:
        await work
