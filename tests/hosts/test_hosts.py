"""Two daemons of one engine, each with a folder, a ledger and an engine of words of its own."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.ledger import PastGeneration
from hotreload.daemon import Daemon
from hotreload.errors import (
    CheckpointIncompatible,
    ConfigError,
    EngineLost,
    HotReloadError,
    RankLeft,
    first_of,
)
from hotreload.features import FEATURES
from hotreload.hosts import messages
from hotreload.hosts.life import follower, lead, rank_group
from hotreload.hosts.life.follower import FollowerLife
from hotreload.settings.load import load
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, Outcome, Revision
from tests.hosts.memory import MemoryStore
from tests.hosts.slice import FakeRank
from tests.hosts.test_meeting import Met
from tests.waiting import turn_until


class Hosts:
    """Rank 0 and rank 1; what `faults` say the build of a rank ends with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.left: list[int] = []
        self.faults: dict[int, HotReloadError] = {}
        self.engines: dict[int, FakeRank] = {}
        self.sets: dict[int, list[str]] = {0: [], 1: []}
        for rank in (0, 1):
            write_tiny(self.of(rank) / "model", "served by step 0")
            (self.of(rank) / "checkpoints").mkdir()

    def of(self, rank: int) -> Path:
        return self.folder / f"host{rank}"

    def drop(self, name: str, ranks: tuple[int, ...] = (0, 1)) -> None:
        made = write_tiny(self.folder / name, "served by step 1")
        for rank in ranks:
            shutil.copytree(made, self.of(rank) / "checkpoints" / name)

    def daemon(self, rank: int) -> Daemon:
        folder = self.of(rank)
        sets = [
            f"engine.model={folder / 'model'}",
            "engine.nnodes=2",
            "engine.tp=2",
            f"engine.node_rank={rank}",
            "engine.dist_init_addr=localhost:7000",
            "engine.warm_batches=0",
            f"source.path={folder / 'checkpoints'}",
            "source.settle=10ms",
            "source.rescan=100ms",
            f"state.directory={folder / 'state'}",
            "metrics.address=''",
            *self.sets[rank],
        ]
        return Daemon(load(None, sets, {}, FEATURES).settings)

    # --- what stands for JAX's meeting and for the engine ------------------------------------

    async def join(self, ranks: Any, within: float) -> Met:
        return Met(ranks, self.store, self.left)

    async def start_rank(
        self, joined: Met, *, revision: Revision, checkpoint: Checkpoint, **asked: Any
    ) -> FakeRank:
        own = joined.ranks.own
        if fault := self.faults.get(own):
            raise fault
        self.engines[own] = FakeRank(checkpoint.revision)
        return self.engines[own]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made: Any = Hosts(tmp_path)
    monkeypatch.setattr(rank_group, "JoinedRanks", made)
    monkeypatch.setattr(lead, "RankEngine", made)
    monkeypatch.setattr(follower, "RankEngine", made)
    monkeypatch.setattr(messages, "READ_SECONDS", 0.05)
    monkeypatch.setattr(lead, "GIVE_UP_SECONDS", 0.1)
    monkeypatch.setattr(rank_group, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(rank_group, "SILENT_LOOKS", 10**9)  # nobody is silent here
    return made  # type: ignore[no-any-return]  # a stand-in


class Pair:
    """Both daemons, and the tasks that are their lives."""

    def __init__(self, hosts: Hosts) -> None:
        self.daemons = [hosts.daemon(rank) for rank in (0, 1)]
        self.leader, self.follower = self.daemons
        self.lives = [asyncio.create_task(each.life.run()) for each in self.daemons]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this is so; what ends a life before ends the wait."""
        await turn_until(lambda: is_so() or any(life.done() for life in self.lives))
        for life in self.lives:
            if life.done():
                life.result()

    async def live(self, label: str) -> None:
        """Wait until both have written down that this is live."""
        await self.until(lambda: self.labels == [label, label])

    @property
    def labels(self) -> list[str]:
        live = [daemon.ledger.live for daemon in self.daemons]
        return [each.revision.label if each else "" for each in live]

    async def ends(self, rank: int) -> BaseException:
        """What ends the life of this rank."""
        async with asyncio.timeout(60):
            await asyncio.wait({self.lives[rank]})
        try:
            self.lives[rank].result()
        except BaseException as end:
            return first_of(end)
        raise AssertionError("it ended well")


@asynccontextmanager
async def running(hosts: Hosts) -> AsyncIterator[Pair]:
    pair = Pair(hosts)
    try:
        yield pair
    finally:
        for life in pair.lives:
            life.cancel()
        await asyncio.gather(*pair.lives, return_exceptions=True)  # each end is heard
        for daemon in pair.daemons:
            await daemon.source.close()


async def test_both_start_with_the_same_and_write_it_down(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        assert pair.leader.ledger.live == pair.follower.ledger.live
        await pair.until(lambda: pair.follower.observers.picture.state == "following")
        assert pair.follower.status.picture.ready() == (True, [])
        assert pair.follower.status.snapshot()["rank"] == {
            "own": 1,
            "of": 2,
            "leader": "localhost:7000",
        }
        assert (pair.leader.observers.picture.state, pair.leader.status.picture.live) == (
            "serving",
            pair.follower.status.picture.live,
        )


async def test_a_checkpoint_goes_live_on_both_and_rank_0_going_ends_both(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        hosts.drop("step_1")
        await pair.live("step_1")
        assert [engine.weights.live.revision.label for engine in hosts.engines.values()] == [
            "step_1"
        ] * 2
        paths = [daemon.ledger.generations[-1].path for daemon in pair.daemons]
        assert paths == [str(hosts.of(rank) / "checkpoints" / "step_1") for rank in (0, 1)]
        pair.lives[0].cancel()
        end = await pair.ends(1)
        assert (type(end), str(end)) == (RankLeft, "rank 0 leaves: it was asked to stop")
        assert sorted(hosts.left) == [0, 1]
        assert all(engine.is_closed for engine in hosts.engines.values())


async def test_other_bytes_of_the_same_name_are_no_checkpoint_for_both(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        other = write_tiny(hosts.of(1) / "aside", "served by step 2")
        shutil.copytree(other, hosts.of(1) / "checkpoints" / "step_1")
        hosts.drop("step_1", (0,))
        await pair.until(
            lambda: "step_1" in {a.revision.label for a in pair.leader.ledger.attempts}
        )
        attempt = pair.leader.ledger.attempts[0]
        assert attempt.outcome is Outcome.POSTPONED
        assert attempt.reason is not None
        assert attempt.reason.message.startswith("rank 1: step_1 ")
        assert "other bytes have that name on this host" in attempt.reason.message
        assert pair.labels == ["model", "model"]


async def test_a_rank_that_has_the_files_later_is_waited_for(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        hosts.drop("step_1", (0,))
        await pair.until(lambda: pair.leader.ledger.attempts[0].outcome is Outcome.POSTPONED)
        reason = pair.leader.ledger.attempts[0].reason
        assert reason is not None
        assert reason.message.startswith("rank 1: ")
        shutil.copytree(hosts.folder / "step_1", hosts.of(1) / "checkpoints" / "step_1")
        await pair.live("step_1")


@pytest.mark.parametrize(
    ("rank", "ends"),
    [
        (0, "the engine was not built on all ranks: not here"),
        (1, "the engine was not built on all ranks: rank 1: not here"),
    ],
)
async def test_a_rank_that_alone_cannot_build_ends_the_life(
    hosts: Hosts, rank: int, ends: str
) -> None:
    """The others' builds wait for it for ever."""
    hosts.faults = {rank: CheckpointIncompatible("not here")}
    async with running(hosts) as pair:
        end = await pair.ends(0)
        assert isinstance(end, EngineLost)
        assert str(end).startswith(ends)


async def test_what_no_rank_can_build_is_passed_over(hosts: Hosts) -> None:
    hosts.faults = {rank: CheckpointIncompatible("not here") for rank in (0, 1)}
    async with running(hosts) as pair:
        await pair.until(lambda: len(pair.leader.ledger.attempts) > 0)
        reason = pair.leader.ledger.attempts[0].reason
        assert reason is not None
        assert reason.message == "not here"


async def test_ranks_that_are_set_up_differently_do_not_begin(hosts: Hosts) -> None:
    hosts.sets[1] = ["engine.dtype=float32"]
    async with running(hosts) as pair:
        end = await pair.ends(0)
        assert isinstance(end, ConfigError)
        assert "rank 1 cannot take part: dtype is float32 there and auto here" in str(end)
        assert "dtype is float32 there" in str(await pair.ends(1))
        assert hosts.engines == {}


async def test_numbers_do_not_fall_whoever_has_the_older_ledger(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        hosts.drop("step_1")
        await pair.live("step_1")
    hosts.store = MemoryStore()
    shutil.rmtree(hosts.of(0) / "state")
    async with running(hosts) as pair:
        await pair.live("step_1")
        assert pair.leader.ledger.live == pair.follower.ledger.live
        assert pair.leader.ledger.live is not None
        assert pair.leader.ledger.live.number == 3


async def test_a_number_that_no_ledger_has_is_taken_over_by_nobody(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        pair.follower.ledger.numbers_given = 10**16
        end = await pair.ends(0)
        assert isinstance(end, ConfigError)
        assert "rank 1 says that its last generation has the number '10000000000000000'" in str(end)
        assert pair.leader.ledger.numbers_given == 0


async def test_another_ledger_s_name_of_a_number_gives_way(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
    hosts.store = MemoryStore()
    async with running(hosts) as pair:
        other = PastGeneration(1, Revision("other", "other"), "another", "", 1.0)
        pair.follower.ledger.generations.clear()
        pair.follower.ledger.generations.append(other)
        await pair.live("model")
        assert pair.leader.ledger.live == pair.follower.ledger.live
        assert [place.revision.label for place in pair.follower.ledger.generations] == ["model"]


async def test_a_ledger_that_a_rank_cannot_write_is_told(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")

        async def full(ledger: Any) -> str:
            return "the disk is full"

        pair.follower.attempts.write = full
        hosts.drop("step_1")
        await pair.live("step_1")
        assert await pair.leader.attempts.save() == "rank 1: the disk is full"


async def test_other_weights_than_rank_0_s_end_the_engine(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        follower = hosts.engines[1]
        follower.live = replace(follower.live, fingerprint="another")
        live = pair.leader.ledger.live
        assert live is not None
        pair.leader.ledger.live = replace(live, number=7)
        assert "here another is" in (await pair.leader.attempts.save() or "")
        assert isinstance(await pair.ends(0), EngineLost)


async def test_a_follower_whose_part_dies_ends_rank_0_too(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        hosts.engines[1].die()
        end = await pair.ends(0)
        assert "rank 1 has lost its part" in str(end)
        assert pair.follower.observers.picture.state == "lost"
        assert pair.leader.entrance.is_lost


async def test_rank_0_cannot_begin_anew_beside_an_engine_that_is_built(hosts: Hosts) -> None:
    async with running(hosts) as pair:
        await pair.live("model")
        assert isinstance(pair.follower.life, FollowerLife)
        with pytest.raises(EngineLost, match="this rank has built an engine"):
            await pair.follower.life.prepare_start({})
