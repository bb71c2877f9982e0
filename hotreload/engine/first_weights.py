"""What an engine begins with: the weights that upstream loaded, or a copy of a twin's live ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hotreload.engine.generations import Generations
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.slots import find_slot
from hotreload.engine.upstream.scheduler import SchedulerThread
from hotreload.engine.upstream.watch import EngineWatch
from hotreload.engine.weights.loaders import Comparison
from hotreload.engine.weights.one_set import stand_ins
from hotreload.engine.weights.sets import StagingOptions, WeightSets
from hotreload.engine.weights.twins import Original
from hotreload.errors import TryAgain
from hotreload.types import Revision, Staged


def begin_with(
    first: Revision | Original, scheduler: SchedulerThread, terms: StagingOptions
) -> tuple[WeightSets, Staged]:
    """The sets of a built engine, and that which it begins with.

    It is what upstream made, under this name, or an original's copy in its place. Nobody is
    answered yet.
    """
    runner = scheduler.scheduler.tp_worker.get_model_runner()
    sets = WeightSets(
        runner, terms, first.comparison if isinstance(first, Original) else Comparison()
    )
    # A list of our own: main's ahead-of-time programs know upstream's by its identity.
    leaves: list[Any] = list(find_slot(runner).read())
    scheduler.bind(stand_ins(leaves))  # what is replaced goes at once, one by one
    if isinstance(first, Original):
        staged = sets.adopt_copy(leaves, first)
    else:
        staged = sets.adopt(leaves, first)
    scheduler.bind(leaves)
    return sets, staged


def shadow_pool(
    scheduler: SchedulerThread, sets: WeightSets, live: Staged, longest: int
) -> ShadowPool | None:
    """Where weights are proven, if beside others that answer; decides where spare ones wait."""
    if scheduler.cannot_overlap:
        sets.decide(live)
        return None
    pool = ShadowPool(scheduler.lanes.allocator, longest)
    sets.decide(live, pool.buffers)
    return pool


@asynccontextmanager
async def named(revision: Revision | None) -> AsyncIterator[Revision]:
    """What upstream loads, under this name."""
    assert revision is not None, "weights that are no copy need a name"
    yield revision


def check_running(watch: EngineWatch) -> None:
    """TryAgain when there is nothing to copy any more: another twin may be there later."""
    if watch.is_closed or watch.reason is not None:
        raise TryAgain("the engine to be copied has ended", code="original_gone")


@asynccontextmanager
async def lent(generations: Generations, sets: WeightSets) -> AsyncIterator[Original]:
    """What is live in an engine, for a twin to copy: it is not traded for others meanwhile."""
    async with generations.unchanged:
        yield Original(generations.live, sets.loaders.comparison)
