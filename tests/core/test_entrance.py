"""One way in to several engines: each request goes to the one that is least busy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from hotreload.core.way_in.admission import Conditions
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.errors import DrainTimedOut, EngineLost, NotNewEnough, NotServing
from hotreload.types import AnsweringGeneration, Generation, Lease, Revision
from tests.waiting import turn_until

ONE = Generation(1, Revision("a"), "f1", 0.0)
TWO = Generation(2, Revision("b"), "f2", 0.0)


def lease(generation: Generation, engine: int) -> Lease[str]:
    return Lease(generation, f"engine {engine}")


@pytest.fixture
def entrance() -> Entrance[str]:
    made = Entrance[str](print, replicas=3, max_held=2)
    for index, gate in enumerate(made.gates):
        gate.open(lease(ONE, index))
    return made


@asynccontextmanager
async def busy(gate: Gate[str], requests: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as inside:
        for _ in range(requests):
            await inside.enter_async_context(gate.admit())
        yield


async def who_answers(entrance: Entrance[str], at_least: int = 0, within: float = 5.0) -> str:
    async with entrance.admit(Conditions(at_least, within)) as let_in:
        return f"{let_in.generation.number} on {let_in.engine}"


async def test_the_least_busy_engine_answers(entrance: Entrance[str]) -> None:
    async with busy(entrance.gates[0], 2), busy(entrance.gates[2], 1):
        assert await who_answers(entrance) == "1 on engine 1"
        async with busy(entrance.gates[1], 3):
            assert await who_answers(entrance) == "1 on engine 2"
        assert entrance.inside == 3


async def test_those_that_are_equally_busy_take_turns(entrance: Entrance[str]) -> None:
    answered = [await who_answers(entrance) for _ in range(6)]
    assert {answered.count(f"1 on engine {index}") for index in range(3)} == {2}


async def test_while_one_is_closed_for_a_swap_the_others_answer(entrance: Entrance[str]) -> None:
    entrance.gates[1].hold()
    answered = {await who_answers(entrance) for _ in range(6)}
    assert answered == {"1 on engine 0", "1 on engine 2"}
    assert entrance.held == 0


async def test_who_comes_while_all_are_closed_waits(entrance: Entrance[str]) -> None:
    for gate in entrance.gates:
        gate.hold()
    asking = asyncio.create_task(who_answers(entrance))
    await turn_until(lambda: entrance.held == 1)
    for index, gate in enumerate(entrance.gates):
        gate.open(lease(TWO, index))
    assert (await asking).startswith("2 on engine")


async def test_a_newer_generation_is_looked_for_on_every_engine(entrance: Entrance[str]) -> None:
    entrance.gates[2].change(lease(TWO, 2))
    async with busy(entrance.gates[2], 5):
        assert await who_answers(entrance, at_least=2) == "2 on engine 2"


async def test_who_waits_for_a_newer_one_is_answered_by_the_first_that_has_it(
    entrance: Entrance[str],
) -> None:
    asking = asyncio.create_task(who_answers(entrance, at_least=2))
    await turn_until(lambda: entrance.gates[0].awaiting == 1)
    entrance.gates[0].change(lease(TWO, 0))
    assert await asking == "2 on engine 0"
    with pytest.raises(NotNewEnough, match=r"[12] is live"):
        await who_answers(entrance, at_least=3, within=0.0)


async def test_who_waits_for_a_newer_one_goes_in_wherever_it_answers_first(
    entrance: Entrance[str],
) -> None:
    entrance.gates[0].hold()
    asking = asyncio.create_task(who_answers(entrance, at_least=2))
    await turn_until(lambda: entrance.gates[1].awaiting == 1)
    entrance.gates[0].open(lease(TWO, 0))
    assert await asking == "2 on engine 0"
    assert [gate.awaiting for gate in entrance.gates] == [0, 0, 0]


async def test_who_came_while_all_were_closed_goes_in_wherever_one_that_will_do_opens_first(
    entrance: Entrance[str],
) -> None:
    for gate in entrance.gates:
        gate.hold()
    asking = [asyncio.create_task(who_answers(entrance, at_least=2)) for _ in range(3)]
    await turn_until(lambda: entrance.held == 3)
    entrance.gates[1].open(lease(ONE, 1))
    await turn_until(lambda: entrance.gates[1].awaiting == 1)
    entrance.gates[2].open(lease(TWO, 2))
    assert await asyncio.gather(*asking) == ["2 on engine 2"] * 3


async def test_those_who_wait_for_a_newer_one_are_bounded(entrance: Entrance[str]) -> None:
    waiting = [asyncio.create_task(who_answers(entrance, at_least=2)) for _ in range(2)]
    await turn_until(lambda: entrance.gates[0].awaiting == 2)
    with pytest.raises(NotServing) as told:
        await who_answers(entrance, at_least=2)
    assert told.value.code == "too_many_awaiting"
    entrance.gates[2].change(lease(TWO, 2))
    assert await asyncio.gather(*waiting) == ["2 on engine 2"] * 2


async def test_who_waits_at_an_engine_that_is_lost_goes_on_to_another(
    entrance: Entrance[str],
) -> None:
    for gate in entrance.gates:
        gate.hold()
    asking = asyncio.create_task(who_answers(entrance))
    await turn_until(lambda: entrance.held == 1)
    waits_at = next(gate for gate in entrance.gates if gate.held)
    waits_at.seal("it died", code=EngineLost.code)
    await turn_until(lambda: (waits_at.held, entrance.held) == (0, 1))
    other = next(gate for gate in entrance.gates if gate.held)
    other.open(lease(ONE, other.replica))
    assert await asking == f"1 on engine {other.replica}"


async def test_lost_engines_answer_nobody_and_the_last_one_ends_it(entrance: Entrance[str]) -> None:
    for gate in entrance.gates[:2]:
        gate.seal("it died", code=EngineLost.code)
    assert {await who_answers(entrance) for _ in range(4)} == {"1 on engine 2"}
    assert (entrance.lets_in, entrance.is_lost) == (True, False)
    entrance.gates[2].seal("it died too", code=EngineLost.code)
    assert (entrance.lets_in, entrance.is_lost) == (False, True)
    with pytest.raises(NotServing, match="it died"):
        await who_answers(entrance)


async def test_an_engine_that_is_started_again_gets_a_gate_of_its_own(
    entrance: Entrance[str],
) -> None:
    entrance.allow(max_held=7)
    entrance.gates[1].seal("it died", code=EngineLost.code)
    again = entrance.renew(1)
    assert again.max_held == 7
    assert {await who_answers(entrance) for _ in range(4)} == {"1 on engine 0", "1 on engine 2"}
    again.open(lease(ONE, 1))
    assert "1 on engine 1" in {await who_answers(entrance) for _ in range(3)}


async def test_once_sealed_no_engine_that_comes_later_lets_anybody_in(
    entrance: Entrance[str],
) -> None:
    entrance.seal("hotreload is stopping", code="stopping")
    entrance.renew(0).open(lease(ONE, 0))
    with pytest.raises(NotServing, match="stopping"):
        await who_answers(entrance)
    with pytest.raises(NotServing, match="stopping"):
        entrance.lend_engine().__enter__()


async def test_before_the_first_opens_everybody_is_told_that_it_boots() -> None:
    entrance = Entrance[str](print, replicas=2)
    with pytest.raises(NotServing) as told:
        await who_answers(entrance)
    assert (told.value.code, entrance.list_answering(), entrance.is_lost) == ("booting", [], False)
    entrance.gates[0].open(lease(ONE, 0))
    assert await who_answers(entrance) == "1 on engine 0"
    with entrance.lend_engine() as preparer:
        assert preparer == "engine 0"


async def test_who_answers_is_counted_over_all_the_live_ones_first(
    entrance: Entrance[str],
) -> None:
    async with busy(entrance.gates[0], 1), busy(entrance.gates[1], 2):
        entrance.gates[0].change(lease(TWO, 0))
        assert entrance.list_answering() == [
            AnsweringGeneration(TWO, 0),
            AnsweringGeneration(ONE, 3),
        ]
        with pytest.raises(DrainTimedOut):
            await entrance.wait_until_empty(0.0)
    await entrance.wait_until_empty(0.0)


async def test_what_was_live_on_a_lost_engine_counts_for_those_inside_alone(
    entrance: Entrance[str],
) -> None:
    async with busy(entrance.gates[1], 2):
        entrance.gates[1].seal("it died", code=EngineLost.code)
        for index in (0, 2):
            entrance.gates[index].change(lease(TWO, index))
        assert entrance.list_answering() == [
            AnsweringGeneration(TWO, 0),
            AnsweringGeneration(ONE, 2),
        ]
    assert entrance.list_answering() == [AnsweringGeneration(TWO, 0)]
    for gate in entrance.gates:
        gate.seal("it died too", code=EngineLost.code)
    assert entrance.list_answering()[0] == AnsweringGeneration(TWO, 0)


async def test_who_hears_of_a_loss_seals_the_gate_so_that_the_next_goes_to_another(
    entrance: Entrance[str],
) -> None:
    with pytest.raises(EngineLost):
        async with entrance.admit() as let_in:
            raise EngineLost("it died")
    lost = int(let_in.engine[-1])
    assert entrance.gates[lost].is_lost
    with pytest.raises(EngineLost), entrance.lend_engine():
        raise EngineLost("it died too")
    assert len([gate for gate in entrance.gates if gate.is_lost]) == 2
