"""`life.running.RunningEngine` of rank 0: what it does to its own part of the engine, all do."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NoReturn

from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import EngineLimits
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.over import OverRanks
from hotreload.hosts.vote import Chair
from hotreload.types import (
    EngineLoad,
    Staged,
    TensorSpec,
)


class LeadingEngine(OverRanks):
    """Changes go over all ranks; requests, and what is told of the engine, are rank 0's own."""

    def __init__(
        self, own: RankEngine, chair: Chair, *, stage_within: float, prove_within: float
    ) -> None:
        super().__init__(own, chair, stage_within=stage_within, prove_within=prove_within)
        self._rank_0 = own

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts; BadRequest names what is wrong."""
        return await self._rank_0.prepare(request)

    def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a prepared request by these weights, or by the live ones."""
        return self._rank_0.generate(prepared, weights)

    @property
    def limits(self) -> EngineLimits:
        """How large things may be in it."""
        return self._rank_0.limits

    @property
    def recompiles(self) -> int:
        """How often rank 0's serving threads waited for a compilation since the start."""
        return self._rank_0.recompiles

    @property
    def load(self) -> EngineLoad:
        """How busy it is with requests."""
        return self._rank_0.load

    def count_anew(self) -> None:
        """Forget what the start asked by itself: from now on it is clients who are counted."""
        self._rank_0.count_anew()

    def facts(self) -> Mapping[str, Any]:
        """What runs, and on what, for people and logs."""
        return self._rank_0.facts()

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        return self._rank_0.expected_tensors()

    def is_turning(self, within: float) -> bool:
        """Whether rank 0 was seen at work within so many seconds, or is in a step."""
        return self._rank_0.is_turning(within)

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._rank_0.judge_by(probes, max_drift)

    async def distrusted(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        return await self._rank_0.distrusted()

    async def died(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""
        await self._rank_0.died()

    async def close(self) -> None:
        """End rank 0's part; each rank ends its own, and leaves the others afterwards."""
        await self._rank_0.close()
