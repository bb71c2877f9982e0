"""`life.running.RunningEngine` of rank 0: what it does to its own part of the engine, all do."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NoReturn

from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import EngineLimits
from hotreload.engine.ranks.engine import RankEngine
from hotreload.ranks.over import OverRanks
from hotreload.types import (
    Checkpoint,
    EngineLoad,
    HowFar,
    Noise,
    Revision,
    Staged,
    TensorSpec,
)


class LeadingEngine:
    """Changes go over all ranks; requests, and what is told of the engine, are rank 0's own."""

    def __init__(self, own: RankEngine, over: OverRanks) -> None:
        self._own = own
        self._over = over

    # --- on all ranks -----------------------------------------------------------------------------

    @property
    def live(self) -> Staged:
        """The weights that answer new requests."""
        return self._over.live

    @property
    def cannot_overlap(self) -> str | None:
        """Why two sets of weights cannot answer side by side in it; None when they can."""
        return self._over.cannot_overlap

    @property
    def spares_wait_on_host(self) -> bool:
        """They wait beside the live ones, on every rank."""
        return self._over.spares_wait_on_host

    @property
    def staging(self) -> HowFar | None:
        """How far rank 0 is with a checkpoint; None while it is with none."""
        return self._over.staging

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        """Have every rank load its share; what they load has one fingerprint."""
        return await self._over.stage(checkpoint)

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights the canary prompts; every rank computes the answers."""
        await self._over.prove(staged)

    async def flip(self, staged: Staged) -> Staged:
        """Have `staged` answer new requests from one turn of all ranks on."""
        return await self._over.flip(staged)

    async def exchange(self, staged: Staged) -> Staged:
        """Make `staged` live on all ranks in one turn, and return what was live."""
        return await self._over.exchange(staged)

    async def scrub(self) -> None:
        """Overwrite all that failed weights computed, on every rank."""
        await self._over.scrub()

    async def retire(self, staged: Staged) -> None:
        """Wait until nothing is under way under weights that nobody holds a lease on any more."""
        await self._over.retire(staged)

    async def release(self, staged: Staged) -> None:
        """Free spare weights on every rank."""
        await self._over.release(staged)

    async def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, computed on what is live now on every rank."""
        return await self._over.checksums()

    async def twin(self, staged: Staged) -> Staged:
        """Refuse it."""
        return await self._over.twin(staged)

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        """Refuse it."""
        return await self._over.perturb(revision, noise)

    async def stow(self, staged: Staged) -> Staged:
        """Refuse it."""
        return await self._over.stow(staged)

    async def unstow(self, staged: Staged) -> Staged:
        """They are where spare ones wait."""
        return await self._over.unstow(staged)

    async def probe(self) -> None:
        """Ask the live weights the canary prompts."""
        await self._over.probe()

    async def withheld(self, beyond: int) -> int:
        """Wait until more answers than these were withheld as no numbers; how many."""
        return await self._over.withheld(beyond)

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way (under these weights)."""
        await self._over.abort(staged)

    def lose(self, why: str) -> None:
        """Count it as lost: whoever waits for it hears EngineLost."""
        self._over.lose(why)

    # --- of rank 0 alone --------------------------------------------------------------------------

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts; BadRequest names what is wrong."""
        return await self._own.prepare(request)

    def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a prepared request by these weights, or by the live ones."""
        return self._own.generate(prepared, weights)

    @property
    def limits(self) -> EngineLimits:
        """How large things may be in it."""
        return self._own.limits

    @property
    def recompiles(self) -> int:
        """How often rank 0's serving threads waited for a compilation since the start."""
        return self._own.recompiles

    @property
    def load(self) -> EngineLoad:
        """How busy it is with requests."""
        return self._own.load

    def count_anew(self) -> None:
        """Forget what the start asked by itself: from now on it is clients who are counted."""
        self._own.count_anew()

    def facts(self) -> Mapping[str, Any]:
        """What runs, and on what, for people and logs."""
        return self._own.facts()

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self._own.expected_tensors()

    def is_turning(self, within: float) -> bool:
        """Whether rank 0 was seen at work within so many seconds, or is in a step."""
        return self._own.is_turning(within)

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._own.judge_by(probes, max_drift)

    async def distrusted(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        return await self._own.distrusted()

    async def died(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""
        await self._own.died()

    async def close(self) -> None:
        """End rank 0's part; each rank ends its own, and leaves the others afterwards."""
        await self._own.close()
