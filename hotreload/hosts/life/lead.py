"""Rank 0 of an engine over several hosts: leads the start, and keeps all ranks' ledgers alike.

The candidate of a start is prepared on every rank, then all ranks build. Later changes go through
`EngineOverRanks`. Each rank's ledger records the live generation.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotreload.core.attempt_records import Save
from hotreload.core.ledger import Ledger
from hotreload.errors import ConfigError, DeviceUnavailable, EngineLost, HotReloadError, TryAgain
from hotreload.hosts.engine.engine_over_ranks import EngineOverRanks
from hotreload.hosts.engine.joined_ranks import JoinedRanks
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.life.rank_group import (
    NUMBERS_GIVEN,
    Beats,
    Lose,
    find_differences,
    meet,
    read_facts,
)
from hotreload.hosts.messages import InvalidMessage, live_fields, parse_number, revision_fields
from hotreload.hosts.steps import BUILD, HELLO, PREPARE, StepKind, StepSeconds
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.vote import Ballot, Chair
from hotreload.settings.load import Settings
from hotreload.threads import give_up, run_to_end
from hotreload.types import Revision

log = logging.getLogger("hotreload.ranks")

GIVE_UP_SECONDS = 10.0
"""Once one rank has built or failed: the time for the others to build or fail, too."""
NOT_RECORDED = (
    "nothing: requests are served as before, and it is sent again with the next change; look at "
    "the disk of [state] directory on the rank that `why` names"
)


@dataclass(eq=False)
class Lead:
    """One life of rank 0: it meets the ranks, builds the engine on all, and keeps ledgers alike."""

    settings: Settings
    ranks: Ranks
    ledger: Ledger
    save_own: Save
    """Write this rank's ledger."""
    lose: Lose

    def __post_init__(self) -> None:
        settings = self.settings
        self._beats: Beats | None = None
        self._engine: EngineOverRanks | None = None
        self._recorded: Mapping[str, str] = {}
        """The live generation, as every other rank has recorded it last."""
        self._seconds = StepSeconds(
            meet=settings.engine.join_timeout,
            stage=settings.stage_seconds,
            prove=settings.reload.probe_timeout / settings.reload.shadow_share,
        )

    def silences(self) -> Mapping[int, float]:
        """Return the seconds since each other rank's last heartbeat; empty before they meet."""
        return self._beats.silences if self._beats else {}

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Hold the meeting of all ranks; ConfigError names one that differs from rank 0."""
        async with meet(self.ranks, self._seconds.meet, self.lose) as (joined, self._beats):
            self._joined: JoinedRanks = joined
            self._chair = Chair(joined.store, list(self.ranks.others))
            await self._agree()
            yield

    async def _agree(self) -> None:
        """ConfigError unless all ranks have the same facts; note their generations' numbers."""
        own = await read_facts(self.settings)
        for each in await self._collect_hellos():
            theirs = dict(each.results)
            given = _number(each.rank, theirs.pop(NUMBERS_GIVEN, ""))
            self.ledger.numbers_given = max(self.ledger.numbers_given, given)
            if unlike := find_differences(own, theirs):
                words = f"[engine] nnodes: rank {each.rank} cannot take part"
                raise ConfigError(f"{words}: {'; '.join(unlike)}", code="ranks_differ")

    async def _collect_hellos(self) -> list[Ballot]:
        try:
            return await self._ask_all(HELLO)
        except TryAgain as fault:
            is_setting = fault.code == ConfigError.code
            raise (ConfigError if is_setting else DeviceUnavailable)(str(fault)) from fault

    # --- the engine ------------------------------------------------------------------------------

    async def make(self, *, revision: Revision, **asked: Any) -> EngineOverRanks:
        """Start the engine on all ranks, from a checkpoint that rank 0 has prepared."""
        await self._ask_all(PREPARE, revision_fields(revision))
        start = partial(RankEngine.start_rank, self._joined, revision=revision, **asked)
        own = await self._build(start)
        self._engine = EngineOverRanks(own, self._chair, self._seconds)
        return self._engine

    async def _build(self, build: Callable[[], Coroutine[Any, Any, RankEngine]]) -> RankEngine:
        """Build this rank's part while the others build theirs; each build waits for all others.

        Once one build has failed, the others hang: EngineLost ends their processes. If all builds
        failed, the error is this rank's own, and the next candidate may succeed.
        """
        step, within = await self._chair.call(BUILD.name), BUILD.within(self._seconds)
        own, others = (
            asyncio.create_task(build()),
            asyncio.create_task(self._chair.collect_votes(step, within)),
        )
        both: set[asyncio.Task[Any]] = {own, others}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            await asyncio.wait(both, timeout=GIVE_UP_SECONDS)
            faults = [each.exception() for each in (own, others) if each.done()]
            if faults == [None] * len(both):
                return own.result()
            if None not in faults and len(faults) == len(both):
                await own
            why = "; ".join(str(fault) for fault in faults if fault)
            raise EngineLost(f"the engine was not built on all ranks: {why}")
        except BaseException:
            await run_to_end(give_up(own, lambda engine: engine.close(), others))
            raise

    async def _ask_all(
        self, kind: StepKind, about: Mapping[str, str] | None = None
    ) -> list[Ballot]:
        """Have all others do this step of a start, and return their votes; raise the gravest."""
        step = await self._chair.call(kind.name, about)
        return await self._chair.collect_votes(step, kind.within(self._seconds))

    # --- the ledgers -----------------------------------------------------------------------------

    async def save(self, ledger: Ledger) -> str | None:
        """Record the live generation in every rank's ledger; return why one of them failed."""
        why = await self.save_own(ledger)
        live = ledger.live
        if self._engine is None or live is None or (fields := live_fields(live)) == self._recorded:
            return why
        try:
            await self._engine.send_live(fields)
        except EngineLost as unlike:  # other weights are live there
            self._engine.lose(str(unlike))
            return why or str(unlike)
        except HotReloadError as fault:  # the next save sends it: the generation is live anyway
            about = {"why": str(fault), "generation": live.number, "todo": NOT_RECORDED}
            log.error("ranks.not_recorded", extra=about)
            return why or str(fault)
        self._recorded = fields
        return why


def _number(rank: int, text: str) -> int:
    """Return the last number that a rank has given a generation."""
    try:
        return parse_number(text)
    except InvalidMessage as why:
        words = f"rank {rank} says that its last generation has the number {text[:30]!r}: {why}"
        todo = "move its [state] directory away: it takes over what rank 0 has"
        raise ConfigError(f"[state] directory: {words}; {todo}") from why
