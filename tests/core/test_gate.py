import asyncio
import traceback
from contextlib import suppress

import pytest

from hotreload.core.way_in.gate import Gate
from hotreload.errors import DrainTimedOut, NotServing
from hotreload.events import Event, GateChanged
from hotreload.types import AnsweringGeneration, GateState, Generation, Lease, Revision, Staged

ONE = Lease(Generation(1, Revision("a"), "f1", 0.0), "one engine")
TWO = Lease(Generation(2, Revision("b"), "f2", 0.0), "another engine")


@pytest.fixture
def gate() -> Gate[str]:
    gate = Gate[str](publish=lambda event: None, max_held=2)
    gate.open(ONE)
    return gate


async def enter(gate: Gate[str]) -> int:
    async with gate.admit() as lease:
        return lease.generation.number


async def test_a_gate_refuses_everybody_until_it_is_opened_first() -> None:
    gate = Gate[str](publish=lambda event: None)
    with pytest.raises(NotServing) as refused:
        await enter(gate)
    assert refused.value.code == "booting"
    assert refused.value.retry_after
    gate.open(ONE)
    assert await enter(gate) == 1


async def test_a_refusal_holds_nothing_of_those_who_were_refused_before() -> None:
    gate, refusals = Gate[str](publish=lambda event: None), list[NotServing]()
    for _ in range(2):
        with pytest.raises(NotServing) as refused:
            await enter(gate)
        refusals.append(refused.value)
    first, second = (len(traceback.extract_tb(each.__traceback__)) for each in refusals)
    assert first == second


async def test_arrivals_wait_while_it_holds_and_get_the_new_generation(gate: Gate[str]) -> None:
    gate.hold()
    waiting = asyncio.create_task(enter(gate))
    await asyncio.sleep(0)
    assert (gate.held, gate.inside) == (1, 0)
    gate.open(TWO)
    assert await waiting == 2
    assert (gate.held, gate.inside) == (0, 0)


async def test_more_arrivals_than_may_wait_are_told_to_come_back(gate: Gate[str]) -> None:
    gate.hold()
    waiting = [asyncio.create_task(enter(gate)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NotServing, match="max_held") as refused:
        await enter(gate)
    assert refused.value.retry_after == 1
    gate.open(TWO)
    assert await asyncio.gather(*waiting) == [2, 2]


async def test_a_gate_that_does_not_hold_arrivals_refuses_them() -> None:
    gate = Gate[str](publish=lambda event: None, hold_arrivals=False)
    gate.open(ONE)
    gate.hold()
    with pytest.raises(NotServing) as refused:
        await enter(gate)
    assert refused.value.code == "swapping"


async def test_drained_waits_for_the_last_one_inside(gate: Gate[str]) -> None:
    leave = asyncio.Event()

    async def stay() -> None:
        async with gate.admit():
            await leave.wait()

    guest = asyncio.create_task(stay())
    await asyncio.sleep(0)
    gate.hold()
    drained = asyncio.create_task(gate.wait_until_empty(5))
    await asyncio.sleep(0)
    assert not drained.done()
    leave.set()
    await drained
    await guest


async def test_a_drain_that_takes_too_long_says_how_many_are_inside(gate: Gate[str]) -> None:
    async with gate.admit():
        gate.hold()
        with pytest.raises(DrainTimedOut, match=r"1 requests .* drain_timeout"):
            await gate.wait_until_empty(0.01)


async def test_sealing_refuses_those_who_wait_and_is_final(gate: Gate[str]) -> None:
    gate.hold()
    waiting = asyncio.create_task(enter(gate))
    await asyncio.sleep(0)
    gate.seal("the engine died", code="engine_lost")
    with pytest.raises(NotServing, match="the engine died"):
        await waiting
    gate.open(TWO)
    assert gate.state is GateState.SEALED
    with pytest.raises(NotServing, match="the engine died"):
        await enter(gate)


async def test_a_cancelled_request_leaves_no_trace(gate: Gate[str]) -> None:
    gate.hold()
    waiting = asyncio.create_task(enter(gate))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert (gate.held, gate.inside) == (0, 0)


async def test_open_tells_how_long_arrivals_were_held() -> None:
    now = [10.0]
    gate = Gate[str](publish=lambda event: None, clock=lambda: now[0])
    assert gate.open(ONE) == 0.0
    gate.hold()
    now[0] = 10.5
    assert gate.open(TWO) == 0.5


async def test_every_move_is_an_event_that_says_of_which_gate() -> None:
    seen: list[Event] = []
    gate = Gate[str](publish=seen.append, replica=3)
    gate.open(ONE)
    gate.hold()
    gate.seal("over")
    moves = [(event.state, event.replica) for event in seen if isinstance(event, GateChanged)]
    assert moves == [(GateState.OPEN, 3), (GateState.HOLDING, 3), (GateState.SEALED, 3)]


async def test_a_lease_says_who_answers_until_its_request_ends_whatever_comes(
    gate: Gate[str],
) -> None:
    async with gate.admit() as first:
        gate.open(TWO)
        async with gate.admit() as second:
            assert second == TWO
        assert first == ONE


async def test_whoever_prepares_a_request_needs_no_lease_but_a_gate_that_lets_in() -> None:
    gate = Gate[str](publish=lambda event: None)
    with pytest.raises(NotServing) as refused:
        gate.get_engine()
    assert refused.value.code == "booting"
    gate.open(ONE)
    gate.hold()
    assert gate.get_engine() == "one engine"
    assert gate.inside == gate.held == 0
    gate.seal("the engine died", code="engine_lost")
    with pytest.raises(NotServing, match="the engine died"):
        gate.get_engine()


# --- a change of lease -----------------------------------------------------------------------


def weights(name: str) -> Staged:
    return Staged(Revision(name), None, f"fp-{name}", {}, 1)  # as an engine makes it


OLD = Lease(Generation(1, Revision("a"), "f1", 0.0), "one engine", weights("a"))
YOUNG = Lease(Generation(2, Revision("b"), "f2", 0.0), "one engine", weights("b"))


async def test_a_change_of_lease_holds_nobody_and_is_no_move(gate: Gate[str]) -> None:
    seen: list[Event] = []
    gate = Gate[str](publish=seen.append)
    gate.open(OLD)
    async with gate.admit() as first:
        gate.change(YOUNG)
        async with gate.admit() as second:
            assert (first, second) == (OLD, YOUNG)
            assert (gate.state, gate.inside, gate.held) == (GateState.OPEN, 2, 0)
    assert len(seen) == 1


async def test_it_knows_how_many_each_generation_answers(gate: Gate[str]) -> None:
    assert Gate[str](publish=lambda event: None).list_answering() == []
    gate.open(OLD)
    async with gate.admit(), gate.admit():
        gate.change(YOUNG)
        assert gate.list_answering() == [
            AnsweringGeneration(YOUNG.generation, 0),
            AnsweringGeneration(OLD.generation, 2),
        ]
        async with gate.admit():
            assert gate.list_answering()[0].requests == 1
            assert OLD.weights is not None
            assert gate.requests_on(OLD.weights) == 2
    assert gate.list_answering() == [AnsweringGeneration(YOUNG.generation, 0)]


async def test_a_rollback_to_weights_that_answer_counts_both_of_their_generations(
    gate: Gate[str],
) -> None:
    again = Lease(Generation(3, Revision("a"), "f1", 0.0), "one engine", OLD.weights)
    gate.open(OLD)
    async with gate.admit():
        gate.change(YOUNG)
        gate.change(again)
        async with gate.admit():
            assert OLD.weights is not None
            assert gate.requests_on(OLD.weights) == 2
            assert [each.generation.number for each in gate.list_answering()] == [3, 1]


async def test_a_drain_waits_for_everybody_under_whatever_lease(gate: Gate[str]) -> None:
    gate.open(OLD)
    async with gate.admit():
        gate.change(YOUNG)
        async with gate.admit():
            drained = asyncio.create_task(gate.wait_until_empty(5))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not drained.done()
    await drained


async def test_a_change_after_a_seal_lets_nobody_in(gate: Gate[str]) -> None:
    gate.seal("over")
    gate.change(TWO)
    with pytest.raises(NotServing):
        await enter(gate)


def test_a_sealed_gate_tells_what_went_live_after_it() -> None:
    gate: Gate[str] = Gate(publish=lambda _: None)
    gate.open(ONE)
    gate.hold()
    gate.seal("stopping", code="stopping")
    gate.open(TWO)
    assert gate.state is GateState.SEALED
    assert [each.generation for each in gate.list_answering()] == [TWO.generation]


async def test_the_live_generation_answers_also_when_it_has_no_request() -> None:
    gate = Gate[str](publish=lambda event: None)
    gate.open(Lease(live := Generation(1, Revision("one"), "fp", 0.0), "an engine"))
    assert gate.list_answering() == [AnsweringGeneration(live, 0)]
    async with gate.admit():
        assert gate.list_answering() == [AnsweringGeneration(live, 1)]
