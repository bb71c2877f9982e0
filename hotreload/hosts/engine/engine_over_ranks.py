"""The engine of several ranks, on rank 0: a `RunningEngine` whose changes are made on all ranks.

Requests and facts of the engine are those of rank 0's own part.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotreload.behaviour import Answered, Question
from hotreload.engine.answering.items import Parsed
from hotreload.engine.unseen_answers import UnseenAnswers
from hotreload.engine.weight_switch import WeightSwitch
from hotreload.errors import BadRequest, CheckpointIncompatible, HotReloadError
from hotreload.hosts import steps
from hotreload.hosts.all_ranks import AllRanks
from hotreload.hosts.engine.rank_engine import RankEngine, RankSets
from hotreload.hosts.messages import revision_fields
from hotreload.hosts.vote import Chair, check_same
from hotreload.threads import run_to_end
from hotreload.types import Checkpoint, EngineLoad, HowFar, Noise, Revision, Staged


@dataclass(eq=False)
class PartOverRanks[Own]:
    """One of an engine's parts, on all ranks."""

    own: Own
    """Rank 0's own."""
    ranks: AllRanks
    names: dict[Any, str]
    """The ranks' name for each set of weights: the number of the step that made it."""

    def about(self, staged: Staged) -> Mapping[str, str]:
        """Return the fields of a step that is about this set."""
        return {"set": self.names[staged.weights]}


@dataclass(eq=False)
class SetsOverRanks(PartOverRanks[RankSets]):
    """Sets of weights, of which each rank holds its share."""

    def __post_init__(self) -> None:
        own = self.own
        self.expected_tensors, self.wait_for_distrust = own.expected_tensors, own.wait_for_distrust
        # Of this rank alone: each other one reports its own lack of room at a load.
        self.lacks_room, self.held_bytes = own.lacks_room, own.held_bytes

    # --- what all ranks do ------------------------------------------------------------------------

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Load a checkpoint, each rank its share; TryAgain unless all have one fingerprint."""
        async with self.ranks.step(steps.STAGE, revision_fields(checkpoint.revision)) as step:
            work, free = partial(self.own.stage, checkpoint), self.own.release
            staged, ballots = await step.do_everywhere(work, free=free)
            try:
                check_same(ballots, "fingerprint", staged.fingerprint)
            except HotReloadError:
                await run_to_end(_all_of(free(staged), step.give_up()))
                raise
            self.names[staged.weights] = str(step.number)
            return staged

    async def release(self, staged: Staged) -> None:
        """Free spare weights on every rank."""
        async with self.ranks.step(steps.RELEASE, self.about(staged)) as step:
            self.names.pop(staged.weights)
            await step.do_everywhere(partial(self.own.release, staged))

    async def checksums(self) -> dict[str, int]:
        """Return each live leaf's checksum over all ranks."""
        async with self.ranks.step(steps.MEASURE) as step:
            found, _ = await step.do_everywhere(self.own.checksums)
            return found

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

    async def stow(self, staged: Staged) -> Staged:
        """Refuse to keep weights in host memory."""
        raise _cannot("keep weights in host memory")

    async def unstow(self, staged: Staged) -> Staged:
        """Return the weights unchanged: none were ever stowed."""
        return staged

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self.own.live

    @property
    def spares_wait_on_host(self) -> bool:
        """False: spare weights wait beside the live ones, on every rank."""
        return False

    @property
    def staging_progress(self) -> HowFar | None:
        """The progress of this rank's load; None while nothing is loaded."""
        return self.own.staging_progress


class SwitchOverRanks(PartOverRanks[WeightSwitch]):
    """Changes which weights answer, in the same turn on all ranks."""

    async def flip(self, staged: Staged) -> Staged:
        """Make `staged` answer new requests, from the same turn on all ranks; return the last."""
        async with self.ranks.step(steps.FLIP, self.about(staged)) as step:
            before, _ = await step.do_everywhere(partial(self.own.flip, staged), staged)
            return before

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live on all ranks in one turn, and return the weights before."""
        async with self.ranks.step(steps.EXCHANGE, self.about(staged)) as step:
            before, _ = await step.do_everywhere(partial(self.own.exchange, staged), staged)
            return before

    async def retire(self, staged: Staged) -> None:
        """Wait until no request is under way under these weights; none holds a lease on them."""
        async with self.ranks.step(steps.RETIRE, self.about(staged)) as step:
            await step.collect_votes()
            # Other steps may come meanwhile.
            ending = asyncio.create_task(self.own.retire(staged))
        try:
            await ending
        finally:
            ending.cancel()

    async def scrub(self) -> None:
        """Overwrite everything that failed weights computed, on every rank."""
        async with self.ranks.step(steps.SCRUB) as step:
            await step.do_everywhere(self.own.scrub)

    async def flush(self) -> int:
        """Drop cached prefixes that no request under way uses, on all ranks in one turn."""
        async with self.ranks.step(steps.FLUSH) as step:
            tokens, _ = await step.do_everywhere(self.own.flush)
            return tokens

    @property
    def cannot_overlap(self) -> str | None:
        """The reason why two sets of weights cannot answer side by side; None if they can."""
        return self.own.cannot_overlap


@dataclass(eq=False)
class UnseenOverRanks(PartOverRanks[UnseenAnswers]):
    """Proves weights on all ranks; nothing else is asked apart from clients."""

    def __post_init__(self) -> None:
        self.probe = self.own.probe

    async def prove(self, staged: Staged) -> None:
        """Send the canary prompts to staged weights; every rank computes the answers."""
        async with self.ranks.step(steps.PROVE, self.about(staged)) as step:
            await step.do_everywhere(partial(self.own.prove, staged))

    @property
    def cannot_compare(self) -> str:
        """The reason why weights are not compared over several hosts."""
        return "over several hosts the other ranks know nothing of answers that are given"

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
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


class EngineOverRanks:
    """The engine of several ranks; `life.running_engine.RunningEngine` has the promises."""

    def __init__(self, own: RankEngine, chair: Chair, seconds: steps.StepSeconds) -> None:
        self._own = own
        self._ranks = AllRanks(own, chair, seconds)
        names: dict[Any, str] = {own.weights.live.weights: steps.FIRST_SET}
        self.weights = SetsOverRanks(own.weights, self._ranks, names)
        self.switch = SwitchOverRanks(own.switch, self._ranks, names)
        self.unseen = UnseenOverRanks(own.unseen, self._ranks, names)
        # Rank 0 does the rest alone: the others compute along, and end their own parts.
        self.answers, self.ahead, self.facts = own.answers, own.ahead, own.facts
        self.judge_by, self.count_anew = own.judge_by, own.count_anew
        self.is_turning, self.wait_until_dead = own.is_turning, own.wait_until_dead
        self.lose, self.close = own.lose, own.close

    async def send_live(self, about: Mapping[str, str]) -> None:
        """Have every other rank record the live generation, as rank 0 has done."""
        async with self._ranks.step(steps.LIVE, about) as step:
            await step.collect_votes()

    @property
    def recompiles(self) -> int:
        """The number of compilations that rank 0's serving threads have waited for."""
        return self._own.recompiles

    @property
    def load(self) -> EngineLoad:
        """The engine's load of requests."""
        return self._own.load


def _cannot(do: str) -> CheckpointIncompatible:
    return CheckpointIncompatible(f"an engine over several hosts ([engine] nnodes) cannot {do}")


async def _all_of(*works: Awaitable[None]) -> None:
    for work in works:
        await work
