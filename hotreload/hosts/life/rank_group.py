"""The ranks of one engine, from the moment they meet until they part or one of them is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hotreload.errors import EngineLost, RankLeft, first_of
from hotreload.hosts.beats import Beats
from hotreload.hosts.engine.joined_ranks import JoinedRanks
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.settings.credentials import read_join_secret
from hotreload.settings.load import Settings
from hotreload.threads import run_to_end

log = logging.getLogger("hotreload.ranks")


Lose = Callable[[EngineLost], None]
"""Called when another rank is gone, before this rank ends anything."""


def ranks_of(settings: Settings) -> Ranks | None:
    """Return this process's place among those of one engine; None for an engine of one process."""
    engine = settings.engine
    if engine.nnodes == 1:
        return None
    assert engine.dist_init_addr is not None, "the settings were checked"
    return Ranks(engine.node_rank, engine.nnodes, engine.dist_init_addr)


def ranks_with_secret(settings: Settings) -> Ranks | None:
    """Return the same with the join secret; ConfigError if its file has no valid secret."""
    ranks, file = ranks_of(settings), settings.engine.join_secret_file
    if ranks is None or file is None:
        return ranks
    return replace(ranks, secret=read_join_secret(file))


@asynccontextmanager
async def meet(ranks: Ranks, within: float, lose: Lose) -> AsyncIterator[tuple[JoinedRanks, Beats]]:
    """Hold the meeting of all ranks; EngineLost, also from the body, if one is gone.

    A rank that ends by itself sends the others its reason: none of them can go on without it. If
    rank 0 ends, all leave together. No rank waits for one that is gone.
    """
    log.info("ranks.meeting", extra={"rank": ranks.own, "of": ranks.count, "at": ranks.address})
    joined = await JoinedRanks.join(ranks, within)
    log.info("ranks.met", extra={"rank": ranks.own, "of": ranks.count})
    watched = list(ranks.others) if ranks.leads else [0]  # rank 0 watches all others
    beats = Beats(joined.store, ranks.own, watched)
    gone: list[EngineLost] = []

    def note_gone(why: EngineLost) -> None:
        gone.append(why)
        lose(why)

    try:
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(watch(beats, note_gone), name="beats")
            yield joined, beats
            beating.cancel()
    except BaseException as end:
        await run_to_end(_part(joined, beats, end, gone))
        raise


async def watch(beats: Beats, lose: Lose) -> None:
    """Watch the others until EngineLost names one that is gone."""
    try:
        await beats.run()
    except EngineLost as lost:
        lose(lost)
        raise


async def _part(
    joined: JoinedRanks, beats: Beats, end: BaseException, gone: Sequence[EngineLost]
) -> None:
    """Send the others this rank's reason, unless another has gone first; leave with rank 0."""
    is_lost = _is_lost(end)
    if not gone:
        say = beats.lose if is_lost else beats.leave
        try:
            await say(_in_words(end))
        except EngineLost:
            return  # the store is gone, and rank 0 with it
    has_left = any(isinstance(why, RankLeft) for why in gone)
    rank_0_goes = not (is_lost or gone) if joined.ranks.leads else has_left
    if rank_0_goes:
        await joined.leave()


def _is_lost(end: BaseException) -> bool:
    if isinstance(end, BaseExceptionGroup):
        return end.subgroup(EngineLost) is not None
    return isinstance(end, EngineLost)


def _in_words(end: BaseException) -> str:
    first = first_of(end)
    return "it was asked to stop" if isinstance(first, asyncio.CancelledError) else str(first)
