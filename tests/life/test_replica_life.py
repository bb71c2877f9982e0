"""One engine of several: started as a twin, fenced when it is lost, and started again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hotreload.core.engines.replica import Replica, Replicas
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import ConfigError, EngineLost, NotServing, ProbeFailed
from hotreload.events import GenerationLive, ReplicaMoved
from hotreload.life import replica_life
from hotreload.life.replica_life import ReplicaLife, Shared
from hotreload.types import Generation, Mode, ReplicaState, Revision
from tests.fakes import HANG, FakeEngine, Steps, unread
from tests.waiting import PATIENCE, Witness, turn_until

FIRST = Revision("first", "step_0")


class Lives(Witness):
    """Two engines: one that the boot brought, one that is started beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.entrance: Any = Entrance(self.note, replicas=2)
        self.first: Any = FakeEngine(Steps(), FIRST)
        staged = self.first.live
        live = Generation(1, FIRST, staged.fingerprint, 0.0, staged.leaves, staged.bytes)
        self.replica = Replica(self.first, self.entrance.gates[0], live, Mode.OVERLAP)
        self.by_index = {0: self.replica}
        self.replicas = Replicas(self.by_index)
        self.made: list[Any] = []
        self.steps = Steps()
        self.rests: list[int] = []
        self.judged: list[Any] = []
        self.doubts: list[tuple[Generation, str]] = []
        self.may_start_again = asyncio.Event()
        self.may_start_again.set()
        self.shared = Shared(
            entrance=self.entrance,
            by_index=self.by_index,
            replicas=self.replicas,
            start=self._start,
            tasks=lambda replica: {},
            publish=self.note,
            backoff=self._backoff,
            judge=self.judged.append,
            doubt=lambda live, verdict: self.doubts.append((live, str(verdict))),
            probe_within=lambda: 0.25,
            starting=asyncio.Lock(),
        )
        self.replica.open()

    async def _start(self, index: int, twin: Any) -> Any:
        await self.steps.pass_through("start")
        engine = FakeEngine(Steps(), twin.live.revision)
        engine.steps.faults |= self.steps.faults
        self.made.append(engine)
        return engine

    def _backoff(self, failures: int) -> float:
        self.rests.append(failures)
        return 0.0

    def moves(self, index: int = 1) -> list[ReplicaState]:
        moved = (event for event in self.happened if isinstance(event, ReplicaMoved))
        return [event.state for event in moved if event.replica == index]

    async def serving(self, count: int) -> None:
        await self.until(lambda: self.moves().count(ReplicaState.SERVING) == count)

    async def ask(self) -> str:
        async with self.entrance.admit() as lease:
            return f"{lease.generation.number}: {lease.engine.answer(lease.weights)}"

    @asynccontextmanager
    async def living(self) -> AsyncIterator["Lives"]:
        lives = (ReplicaLife(0, self.shared).run(), ReplicaLife(1, self.shared).run())
        self.tasks = [asyncio.create_task(life) for life in lives]
        try:
            yield self
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.wait(self.tasks, timeout=PATIENCE)


@pytest.fixture
async def lives() -> AsyncIterator[Lives]:
    made = Lives()
    async with made.living():
        yield made


async def test_the_second_engine_copies_the_first_and_answers_too(lives: Lives) -> None:
    await lives.serving(1)
    assert lives.moves() == [ReplicaState.STARTING, ReplicaState.SERVING]
    assert len(lives.replicas) == 2
    assert [await lives.ask() for _ in range(2)] == ["1: first clean"] * 2
    assert GenerationLive(lives.replicas.live, 1) in lives.happened


async def test_one_that_is_lost_is_closed_and_started_again_while_the_other_serves(
    lives: Lives,
) -> None:
    await lives.serving(1)
    lives.made[0].die()
    await lives.serving(2)
    expected = [ReplicaState.STARTING, ReplicaState.SERVING]
    assert lives.moves() == [*expected, ReplicaState.LOST, *expected]
    assert lives.made[0].is_closed
    assert [await lives.ask() for _ in range(4)] == ["1: first clean"] * 4
    assert lives.replicas.first is lives.replica


async def test_the_first_one_too_is_started_again_beside_the_second(lives: Lives) -> None:
    await lives.serving(1)
    lives.first.die()
    await lives.until(lambda: ReplicaState.SERVING in lives.moves(0))
    assert lives.first.is_closed
    assert [each.index for each in lives.replicas] == [0, 1]
    assert lives.replicas.first is not lives.replica


async def test_each_loss_is_rested_on_for_longer(lives: Lives) -> None:
    for count in range(1, 4):
        await lives.serving(count)
        lives.made[-1].die()
    await lives.serving(4)
    assert lives.rests == [1, 2, 3]


async def test_the_last_engine_that_is_lost_ends_it(lives: Lives) -> None:
    await lives.serving(1)
    lives.steps.faults["start"] = HANG
    lives.made[0].die()
    await lives.until(lambda: ReplicaState.LOST in lives.moves())
    lives.first.die()
    done, _ = await asyncio.wait(lives.tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(EngineLost, match="died"):
        done.pop().result()
    with pytest.raises(NotServing, match="died"):
        await lives.ask()


@pytest.mark.parametrize("fault", [ConfigError("no device is left"), RuntimeError("ours")])
async def test_a_start_that_fails_is_told_and_tried_again(fault: Exception) -> None:
    lives = Lives()
    lives.steps.faults["start"] = [fault, fault]
    async with lives.living():
        await lives.serving(1)
        why = [each.reason for each in lives.happened if isinstance(each, ReplicaMoved)]
        assert len([each for each in why if each and str(fault) in each]) == 2
        assert lives.rests == [1, 2]
        assert await lives.ask() == "1: first clean"


async def test_one_that_answers_badly_lets_nobody_in_and_is_closed() -> None:
    lives = Lives()
    lives.steps.faults["probe"] = ProbeFailed("it talks nonsense here")
    async with lives.living():
        await lives.until(lambda: ReplicaState.LOST in lives.moves())
        assert lives.made[0].is_closed
        assert len(lives.replicas) == 1
        lives.steps.faults.clear()
        await lives.serving(1)


async def test_where_all_fail_the_probe_it_is_the_probe_that_is_doubted() -> None:
    lives = Lives()
    for steps in (lives.steps, lives.first.steps):
        steps.faults["probe"] = ProbeFailed("it talks nonsense here")
    async with lives.living():
        await lives.serving(1)
        assert ReplicaState.LOST not in lives.moves()
        assert set(lives.doubts) == {(lives.replicas.live, "it talks nonsense here")}
        assert lives.made[0].scrubs == len(lives.doubts)
        assert lives.first in lives.judged
        assert await lives.ask() == "1: first clean"


async def test_one_that_answers_nothing_is_not_let_in_though_the_others_fail_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_life, "FIRST_ANSWER_SECONDS", 0.01)
    lives = Lives()
    lives.steps.faults["probe"] = HANG
    lives.first.steps.faults["probe"] = ProbeFailed("it talks nonsense here")
    async with lives.living():
        await lives.until(lambda: ReplicaState.LOST in lives.moves())
        assert (lives.doubts, len(lives.replicas)) == ([], 1)


async def test_it_catches_up_with_what_went_live_while_it_was_started() -> None:
    lives = Lives()
    lives.steps.faults["start"] = HANG
    async with lives.living():
        await lives.steps.entered["start"].wait()
        newer = Revision("newer", "step_1")
        twin_of_the_old = lives.first.live
        staged = await lives.first.stage(unread(newer))
        old = await lives.first.flip(staged)
        live = Generation(2, newer, staged.fingerprint, 0.0)
        lives.replica.switch_to(live, old)
        lives.replicas.live = live

        async def start(index: int, twin: Any) -> Any:
            lives.made.append(FakeEngine(Steps(), twin_of_the_old.revision))
            return lives.made[-1]

        object.__setattr__(lives.shared, "start", start)
        lives.steps.released["start"].set()
        await lives.serving(1)
        assert [await lives.ask() for _ in range(2)] == ["2: newer clean"] * 2
        assert lives.made[-1].spares == []


async def test_what_an_attempt_lost_is_started_again_though_no_part_of_it_died(
    lives: Lives,
) -> None:
    await lives.serving(1)
    lives.by_index[1].lose(EngineLost("the way back failed"))
    await lives.serving(2)
    assert "the way back failed" in {
        each.reason for each in lives.happened if isinstance(each, ReplicaMoved)
    }


async def test_an_attempt_under_way_is_waited_for_before_it_joins() -> None:
    lives = Lives()
    async with lives.shared.replicas.changing, lives.living():
        await turn_until(lambda: bool(lives.made))
        await asyncio.sleep(0)
        assert len(lives.replicas) == 1


async def test_a_lost_one_is_closed_only_when_no_attempt_works_on_it(lives: Lives) -> None:
    await lives.serving(1)
    async with lives.shared.replicas.changing:
        lives.made[0].die()
        await turn_until(lambda: len(lives.replicas) == 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not lives.made[0].is_closed
    await lives.serving(2)
    assert lives.made[0].is_closed


async def test_nothing_that_a_lost_one_held_stays_on_its_devices(lives: Lives) -> None:
    await lives.serving(1)
    replica = lives.by_index[1]
    staged = await lives.made[0].stage(unread(Revision("newer", "step_1")))
    replica.previous = staged
    lives.made[0].die()
    await lives.serving(2)
    assert not staged.weights.is_held
    assert replica.previous is None


async def test_told_to_leave_it_closes_nothing_that_may_be_worked_on(lives: Lives) -> None:
    await lives.serving(1)
    for task in lives.tasks:
        task.cancel()
    await asyncio.wait(lives.tasks, timeout=PATIENCE)
    assert not lives.first.is_closed
    assert not lives.made[0].is_closed
    assert sorted(lives.by_index) == [0, 1]


async def test_who_is_inside_a_lost_one_hears_of_it_though_no_part_of_it_died(lives: Lives) -> None:
    await lives.serving(1)
    lives.by_index[1].lose(EngineLost("the way back failed"))
    with pytest.raises(EngineLost, match="the way back failed"):
        lives.made[0].check_alive()


async def test_one_that_joins_judges_by_the_settings_of_the_moment(lives: Lives) -> None:
    await lives.serving(1)
    assert lives.made[0] in lives.judged
