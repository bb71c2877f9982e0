"""Rank 0 of an engine over several hosts: has all others take part in what it decides.

A start's candidate is prepared on every rank, then all build. Afterwards `OverRanks` takes them
along, and what goes live is written into the ledger of each.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from hotreload.core.attempt_records import Save
from hotreload.core.ledger import Ledger
from hotreload.errors import ConfigError, DeviceUnavailable, EngineLost, HotReloadError, TryAgain
from hotreload.hosts.beats import Beats
from hotreload.hosts.bounds import NotBelieved, live_words, number, words_of
from hotreload.hosts.engine.joined import Joined
from hotreload.hosts.engine.over import OverRanks
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.life.agreement import NUMBERS_GIVEN, differences, read_to_agree_on
from hotreload.hosts.life.rank_group import Lose, meet
from hotreload.hosts.steps import BUILD, HELLO, PREPARE, StepKind, StepSeconds
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.hosts.vote import Ballot, Chair
from hotreload.settings.load import Settings
from hotreload.settings.rules import stage_seconds
from hotreload.threads import run_to_end
from hotreload.types import Revision

log = logging.getLogger("hotreload.ranks")

GIVE_UP_SECONDS = 10.0
"""Time for the others to build, or to fail too, once one has."""
NOT_RECORDED = (
    "nothing: requests are served as before, and it is sent again with the next change; look at "
    "the disk of [state] directory on the rank that `why` names"
)


def make_lead(
    settings: Settings, ranks: Ranks | None, ledger: Ledger, *, save: Save, lose: Lose
) -> "Lead | None":
    """Make what rank 0 of several hosts has; None where there is one host, and on all others."""
    if ranks is None or not ranks.leads:
        return None
    return Lead(settings, ranks, ledger=ledger, save=save, lose=lose)


class Lead:
    """Belongs to one life of rank 0."""

    def __init__(
        self, settings: Settings, ranks: Ranks, *, ledger: Ledger, save: Save, lose: Lose
    ) -> None:
        """`save` writes this rank's ledger."""
        self._settings = settings
        self._ranks = ranks
        self._ledger = ledger
        self._save = save
        self._lose = lose
        self._beats: Beats | None = None
        self._engine: OverRanks | None = None
        self._told: Mapping[str, str] = {}
        """The words for what every other rank has written down as live."""
        self._seconds = StepSeconds(
            meet=settings.engine.join_timeout,
            stage=stage_seconds(settings),
            prove=settings.reload.probe_timeout / settings.reload.shadow_share,
        )

    def silences(self) -> Mapping[int, float]:
        """Seconds since each other rank gave a sign of life; empty before they meet."""
        return self._beats.silences if self._beats else {}

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Meet the other ranks and be with them; ConfigError names one that cannot take part."""
        async with meet(self._ranks, self._seconds.meet, self._lose) as (joined, self._beats):
            self._joined: Joined = joined
            self._chair = Chair(joined.store, list(self._ranks.others))
            await self._agree()
            yield

    async def _agree(self) -> None:
        """See that all have the same versions and settings; no number of theirs is given again."""
        own = await read_to_agree_on(self._settings)
        for each in await self._said_hello():
            theirs = dict(each.says)
            given = _number(each.rank, theirs.pop(NUMBERS_GIVEN, ""))
            self._ledger.numbers_given = max(self._ledger.numbers_given, given)
            if unlike := differences(own, theirs):
                words = f"[engine] nnodes: rank {each.rank} cannot take part"
                raise ConfigError(f"{words}: {'; '.join(unlike)}", code="ranks_differ")

    async def _said_hello(self) -> list[Ballot]:
        try:
            return await self._ask_all(HELLO)
        except TryAgain as fault:
            is_setting = fault.code == ConfigError.code
            raise (ConfigError if is_setting else DeviceUnavailable)(str(fault)) from fault

    # --- the engine ------------------------------------------------------------------------------

    async def make(self, *, revision: Revision, **asked: Any) -> OverRanks:
        """Start the engine on all ranks, from a checkpoint that this one has prepared."""
        await self._ask_all(PREPARE, words_of(revision))
        start = partial(RankEngine.start_rank, self._joined, revision=revision, **asked)
        own = await self._build(start)
        self._engine = OverRanks(own, self._chair, self._seconds)
        return self._engine

    async def _build(self, build: Callable[[], Coroutine[Any, Any, RankEngine]]) -> RankEngine:
        """Build this rank's part while the others build theirs: each waits for all.

        Once one has failed, only failing can end the others' builds: they hang. Where all failed
        another candidate may do.
        """
        step, within = await self._chair.call(BUILD.name), BUILD.within(self._seconds)
        own, others = (
            asyncio.create_task(build()),
            asyncio.create_task(self._chair.all_did(step, within)),
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
            await run_to_end(_undone(own, others))
            raise

    async def _ask_all(
        self, kind: StepKind, about: Mapping[str, str] | None = None
    ) -> list[Ballot]:
        """Have all others do this before there is an engine; the gravest of what they say."""
        step = await self._chair.call(kind.name, about)
        return await self._chair.all_did(step, kind.within(self._seconds))

    # --- the ledgers -----------------------------------------------------------------------------

    async def save(self, ledger: Ledger) -> str | None:
        """Record the live generation in every rank's ledger; return why one of them failed."""
        why = await self._save(ledger)
        live = ledger.live
        if self._engine is None or live is None or (said := live_words(live)) == self._told:
            return why
        try:
            await self._engine.tell_live(said)
        except EngineLost as unlike:  # other weights are live there
            self._engine.lose(str(unlike))
            return why or str(unlike)
        except HotReloadError as fault:  # what is live is so all the same; the next save tells it
            log.error(
                "ranks.not_recorded",
                extra={"why": str(fault), "generation": live.number, "todo": NOT_RECORDED},
            )
            return why or str(fault)
        self._told = said
        return why


def _number(rank: int, said: str) -> int:
    """The last number that rank gave a generation."""
    try:
        return number(said)
    except NotBelieved as why:
        words = f"rank {rank} says that its last generation has the number {said[:30]!r}: {why}"
        todo = "move its [state] directory away: it takes over what rank 0 has"
        raise ConfigError(f"[state] directory: {words}; {todo}") from why


async def _undone(own: asyncio.Task[RankEngine], others: asyncio.Task[list[Ballot]]) -> None:
    own.cancel()
    others.cancel()
    await asyncio.wait({own, others})
    if not own.cancelled() and own.exception() is None:
        await own.result().close()
