"""A feature may have requests wait, name their weights, prefer an engine, and be with each."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import ExactWeights, Gate
from hotreload.errors import EngineLost, GenerationGone, NotServing
from hotreload.types import Generation, Lease, Revision, Staged
from tests.waiting import turn_until

ONE, TWO = (Generation(each, Revision(f"step-{each}"), f"fp-{each}", 0.0) for each in (1, 2))


def lease(made: Generation, engine: int) -> Lease[str]:
    return Lease(made, f"engine {engine}", Staged(made.revision, object(), made.fingerprint, {}, 0))


class Simple(Admission):
    """Has requests of some sessions wait, and others answered as a test says."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.waiting = 0
        self.most = 9
        self.named: Sequence[ExactWeights] = ()
        self.preferred: int | None = None
        self.inside: list[tuple[object, int, int]] = []
        self.lost: list[int] = []

    def holds(self, asked: Conditions) -> bool:
        return asked.session in self.held

    @contextmanager
    def count_waiting(self, asked: Conditions) -> Iterator[None]:
        if self.waiting == self.most:
            raise NotServing("enough wait", code="enough")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def weights_for(self, asked: Conditions) -> Sequence[ExactWeights]:
        return self.named

    def engine_for(self, asked: Conditions) -> int | None:
        return self.preferred

    def track(
        self, asked: Conditions, gate: Gate[Any], lease: Lease[Any]
    ) -> AbstractContextManager[None] | None:
        return self._inside(asked, gate, lease) if asked.session else None

    @contextmanager
    def _inside(self, asked: Conditions, gate: Gate[Any], lease: Lease[Any]) -> Iterator[None]:
        self.inside.append((asked.session, gate.replica, lease.generation.number))
        try:
            yield
        finally:
            self.inside.pop()

    def engine_lost(self, gate: Gate[Any]) -> None:
        self.lost.append(gate.replica)


def entrance_of(*admissions: Admission) -> Entrance[str]:
    """One to two engines, both of which answer by the first weights."""
    made = Entrance[str](lambda event: None, replicas=2, admissions=admissions)
    for gate in made.gates:
        gate.open(lease(ONE, gate.replica))
    return made


async def who_answers(entrance: Entrance[str], session: str | None = None) -> str:
    async with entrance.admit(Conditions(session=session)) as let_in:
        return f"{let_in.generation.number} on {let_in.engine}"


async def test_it_has_a_request_wait_and_no_other_and_none_that_only_looks() -> None:
    simple = Simple("a")
    entrance = entrance_of(simple)
    waits = asyncio.create_task(who_answers(entrance, "a"))
    await turn_until(lambda: simple.waiting == 1)
    assert await who_answers(entrance, "b")
    async with entrance.inspect():
        pass
    simple.held.clear()
    await asyncio.sleep(0)
    assert not waits.done()
    entrance.look_again()
    assert await waits
    assert simple.waiting == 0


async def test_of_two_the_second_holds_what_the_first_has_let_go() -> None:
    first, second = Simple("a"), Simple("a")
    entrance = entrance_of(first, second)
    waits = asyncio.create_task(who_answers(entrance, "a"))
    await turn_until(lambda: first.waiting == 1)
    first.held.clear()
    entrance.look_again()
    await turn_until(lambda: second.waiting == 1)
    assert first.waiting == 0
    second.held.clear()
    entrance.look_again()
    assert await waits


async def test_it_may_refuse_one_that_would_have_to_wait() -> None:
    simple = Simple("a")
    simple.most = 0
    with pytest.raises(NotServing, match="enough wait"):
        await who_answers(entrance_of(simple), "a")


async def test_what_begins_to_wait_at_a_gate_waits_for_it_then() -> None:
    simple = Simple()
    entrance = entrance_of(simple)
    for gate in entrance.gates:
        gate.hold()
    waits = asyncio.create_task(who_answers(entrance, "a"))
    await turn_until(lambda: entrance.held == 1)
    simple.held.add("a")
    entrance.look_again()
    await turn_until(lambda: simple.waiting == 1)
    assert entrance.held == 0
    entrance.seal("it stops", code="stopping")
    with pytest.raises(NotServing, match="it stops"):  # what is refused need not wait
        await waits


async def test_it_names_the_weights_that_answer_and_prefers_an_engine_that_has_them() -> None:
    simple = Simple()
    entrance = entrance_of(simple)
    simple.preferred = 1
    assert [await who_answers(entrance) for _ in range(3)] == ["1 on engine 1"] * 3
    async with entrance.admit():  # so the weights of before answer still, beside the new ones
        entrance.gates[1].change(lease(TWO, 1))
        simple.named = [ExactWeights(number=1)]
        assert await who_answers(entrance) == "1 on engine 1"
        simple.named, simple.preferred = [ExactWeights(number=2)], 0
        assert await who_answers(entrance) == "2 on engine 1"
        simple.named = [ExactWeights(number=3)]
        with pytest.raises(GenerationGone):
            await who_answers(entrance)
        async with entrance.inspect():
            pass


async def test_weights_that_it_keeps_answer_until_it_lets_them_go() -> None:
    simple = Simple()
    entrance = entrance_of(simple)
    gate, first = entrance.gates[0], entrance.gates[0].lease
    assert first is not None
    assert first.weights is not None
    gate.keep(first, simple)
    gate.change(lease(TWO, 0))
    simple.named, simple.preferred = [ExactWeights(number=1)], 0
    assert await who_answers(entrance) == "1 on engine 0"
    gate.unkeep(first, simple)
    assert not gate.is_needed(first.weights)
    assert await who_answers(entrance) == "1 on engine 1"


async def test_it_is_with_a_request_until_that_leaves() -> None:
    simple = Simple()
    simple.preferred = 1
    entrance = entrance_of(simple)
    async with entrance.admit(Conditions(session="a")), entrance.admit():
        assert simple.inside == [("a", 1, 1)]
    assert simple.inside == []


async def test_it_is_told_of_an_engine_that_was_lost() -> None:
    simple = Simple()
    entrance = entrance_of(simple)
    with pytest.raises(EngineLost):
        async with entrance.admit(Conditions(session="a")):
            raise EngineLost("its thread died")
    assert simple.inside == []
    (lost,) = (gate.replica for gate in entrance.gates if gate.is_lost)
    entrance.renew(lost)
    assert simple.lost == [lost]


async def test_one_that_leaves_all_as_it_is_changes_nothing() -> None:
    entrance = entrance_of(Admission(), Admission())
    answered = [await who_answers(entrance, "a") for _ in range(2)]
    assert sorted(answered) == ["1 on engine 0", "1 on engine 1"]
    entrance.renew(0)
