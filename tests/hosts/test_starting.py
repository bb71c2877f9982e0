"""What a rank's start does by itself: it refuses what cannot be, and ends though others hang."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from hotreload import threads
from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream import build, parts
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import ConfigError, EngineLost
from hotreload.hosts.engine.joined_ranks import KEPT_MESSAGES, JoinedRanks, MeetingPlace
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.hosts.upstream.ranks import Ranks
from tests.fakes import unread
from tests.hosts.memory import MemoryStore
from tests.hosts.slice import NEW
from tests.waiting import turn_until

RANKS = Ranks(0, 2, "nowhere:1")


def start(terms: StagingOptions) -> asyncio.Task[RankEngine]:
    """A start of rank 0, before anything is built."""
    joined, options = JoinedRanks(RANKS, MemoryStore()), EngineOptions(Path("model"), tp=2)
    asked: dict[str, Any] = {"revision": NEW, "checkpoint": unread(NEW), "terms": terms}
    return asyncio.create_task(RankEngine.start_rank(joined, options, probes=(), **asked))


async def test_a_start_that_waits_for_another_ranks_is_left_behind_and_no_other_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Upstream's wait has no end: the daemon's must have one."""
    building, may_end, freed = threading.Event(), threading.Event(), threading.Event()

    def hang(*asked: Any) -> None:
        building.set()
        may_end.wait()

    monkeypatch.setattr(build, "build", hang)
    monkeypatch.setattr(parts, "discard", lambda parts: freed.set())
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.0)
    try:
        starting = start(StagingOptions(tmp_path))
        await turn_until(building.is_set)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        with pytest.raises(EngineLost, match="waits for another rank's for ever"):
            await start(StagingOptions(tmp_path))
    finally:
        may_end.set()
    await turn_until(freed.is_set)


@pytest.mark.parametrize(
    ("terms", "setting"), [({"memory": "host"}, "memory"), ({"loader": "upstream"}, "loader")]
)
async def test_what_several_ranks_cannot_do_is_refused_at_the_start(
    tmp_path: Path, terms: dict[str, Any], setting: str
) -> None:
    with pytest.raises(ConfigError, match=setting):
        await start(StagingOptions(tmp_path, **terms))


async def test_the_store_keeps_of_what_ranks_tell_each_other_only_the_last() -> None:
    store = MemoryStore()
    meeting = MeetingPlace(store, RANKS)
    for number in range(KEPT_MESSAGES + 1):
        meeting.send(f"job {number}", "done")
    held = [store.get(f"hotreload/meet/job {number}/0", 0) for number in (0, 1, KEPT_MESSAGES)]
    assert held == [None, "done", "done"]
