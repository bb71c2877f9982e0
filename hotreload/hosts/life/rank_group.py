"""The ranks of one engine from the moment they meet until they part, or one of them is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hotreload.errors import EngineLost, RankLeft, first_of
from hotreload.hosts.beats import Beats
from hotreload.hosts.engine.joined import Joined
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.settings.credentials import read_join_secret
from hotreload.settings.load import Settings
from hotreload.threads import run_to_end

log = logging.getLogger("hotreload.ranks")


Lose = Callable[[EngineLost], None]
"""Called when another rank is gone, before anything ends for it."""


def ranks_of(settings: Settings) -> Ranks | None:
    """Return which of the processes of one engine this is; None where there is one alone."""
    engine = settings.engine
    if engine.nnodes == 1:
        return None
    assert engine.dist_init_addr is not None, "reading the settings saw to it"
    return Ranks(engine.node_rank, engine.nnodes, engine.dist_init_addr)


def trusting_ranks_of(settings: Settings) -> Ranks | None:
    """Return the same, with the secret by which they know each other; ConfigError if it is none."""
    ranks, file = ranks_of(settings), settings.engine.join_secret_file
    if ranks is None or file is None:
        return ranks
    return replace(ranks, secret=read_join_secret(file))


@asynccontextmanager
async def meet(ranks: Ranks, within: float, lose: Lose) -> AsyncIterator[tuple[Joined, Beats]]:
    """Meet the other ranks, and stay connected for the block; EngineLost when one is gone.

    A rank that leaves sends the others its reason: none of them can go on alone. They leave
    together when rank 0 leaves, and wait for no rank that is gone.
    """
    log.info("ranks.meeting", extra={"rank": ranks.own, "of": ranks.count, "at": ranks.address})
    joined = await Joined.join(ranks, within)
    log.info("ranks.met", extra={"rank": ranks.own, "of": ranks.count})
    looked_at = list(ranks.others) if ranks.leads else [0]  # rank 0 reports all others
    beats = Beats(joined.store, ranks.own, looked_at)
    gone: list[EngineLost] = []

    def lose_rank(why: EngineLost) -> None:
        gone.append(why)
        lose(why)

    try:
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(watch(beats, lose_rank), name="beats")
            yield joined, beats
            beating.cancel()
    except BaseException as end:
        await run_to_end(_part(joined, beats, end, gone))
        raise


async def watch(beats: Beats, lose: Lose) -> None:
    """Look after the others until EngineLost names one that is gone."""
    try:
        await beats.run()
    except EngineLost as lost:
        lose(lost)
        raise


async def _part(
    joined: Joined, beats: Beats, end: BaseException, gone: Sequence[EngineLost]
) -> None:
    """Say why this rank goes, unless another one went first; all go together with rank 0."""
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
