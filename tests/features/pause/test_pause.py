"""A pause that somebody asked for holds those who come, and never for ever."""

import asyncio
from collections.abc import Callable

import pytest

from hotreload.attempts import By
from hotreload.core.way_in.admission import Conditions
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import BadRequest, NotNewEnough, NotServing
from hotreload.events import Event, TroubleNews
from hotreload.features.pause.pause import Pause, PauseBegan, PauseOver, RunningRequests
from hotreload.types import Generation, Lease, Revision
from tests.waiting import turn_until

ONE = Generation(1, Revision("a"), "f1", 0.0)
TWO = Generation(2, Revision("b"), "f2", 0.0)
TRAINER = By("pause", 0, 7, 0.0)
LONG = 60.0


class Paused:
    """An entrance before two engines, and what it told."""

    def __init__(self, limit: float = LONG, **how: bool | int) -> None:
        self.told: list[Event] = []
        self.entrance = Entrance[str](self.told.append, replicas=2)
        self.now = Pause(
            self.told.append,
            look_again=self.entrance.look_again,
            limit=limit,
            **how,  # type: ignore[arg-type]  # each is of its kind
        )
        self.entrance.admissions = (self.now,)
        for index, gate in enumerate(self.entrance.gates):
            gate.open(Lease(ONE, f"engine {index}"))

    def pause(self) -> None:
        self.now.begin(TRAINER, "in_place", RunningRequests.FINISH)

    def go_on(self) -> bool:
        return self.now.end(TRAINER)

    async def ask(self, at_least: int = 0, within: float = 5.0) -> int:
        async with self.entrance.admit(Conditions(at_least, within)) as lease:
            return lease.generation.number

    def names(self) -> list[str]:
        return [each.name for each in self.told if isinstance(each, PauseBegan | PauseOver)]

    def troubles(self) -> list[str | None]:
        return [each.message for each in self.told if isinstance(each, TroubleNews)]


async def held(paused: Paused, count: int = 1) -> list[asyncio.Task[int]]:
    """So many who came, and wait."""
    asking = [asyncio.create_task(paused.ask()) for _ in range(count)]
    await turn_until(lambda: paused.now.held == count)
    return asking


async def test_who_comes_waits_until_it_is_over_and_who_is_inside_goes_on() -> None:
    paused = Paused()
    async with paused.entrance.admit():
        paused.pause()
        asking = await held(paused, 3)
        assert (paused.entrance.inside, paused.entrance.held) == (1, 0)
    assert paused.go_on()
    assert [await each for each in asking] == [1, 1, 1]
    assert paused.now.held == 0
    assert paused.names() == ["pause.began", "pause.over"]


async def test_who_only_looks_is_let_in() -> None:
    paused = Paused()
    paused.pause()
    async with paused.entrance.inspect() as lease:
        assert lease.generation is ONE


async def test_those_held_are_answered_by_what_went_live_meanwhile() -> None:
    paused = Paused()
    paused.pause()
    (asking,) = await held(paused)
    for index, gate in enumerate(paused.entrance.gates):
        gate.change(Lease(TWO, f"engine {index}"))
    await asyncio.sleep(0)
    assert not asking.done()
    paused.go_on()
    assert await asking == 2


async def test_who_waits_for_a_swap_or_a_newer_generation_waits_for_the_pause_then() -> None:
    paused = Paused()
    newer = asyncio.create_task(paused.ask(at_least=2))
    await turn_until(lambda: sum(gate.awaiting for gate in paused.entrance.gates) == 1)
    for gate in paused.entrance.gates:
        gate.hold()
    swapped = asyncio.create_task(paused.ask())
    await turn_until(lambda: paused.entrance.held == 1)
    paused.pause()
    for index, gate in enumerate(paused.entrance.gates):
        gate.open(Lease(TWO, f"engine {index}"))
    await turn_until(lambda: paused.now.held == 2)
    paused.go_on()
    assert (await newer, await swapped) == (2, 2)


async def test_the_time_for_a_newer_generation_does_not_run_out_in_a_pause() -> None:
    paused = Paused()
    paused.pause()
    asking = asyncio.create_task(paused.ask(at_least=2, within=0.05))
    await asyncio.sleep(0.1)
    paused.go_on()
    await turn_until(lambda: sum(gate.awaiting for gate in paused.entrance.gates) == 1)
    with pytest.raises(NotNewEnough):
        await asking


async def test_nobody_ends_it_so_it_ends_by_itself_and_says_so() -> None:
    paused = Paused(limit=0.05)
    paused.pause()
    (asking,) = await held(paused)
    assert await asyncio.wait_for(asking, 5) == 1
    assert not paused.now.stands
    (over,) = [each for each in paused.told if isinstance(each, PauseOver)]
    assert (over.by, over.held) == (None, 1)
    assert over.fields() == {"held": 1, "ended": "limit"}
    (words,) = paused.troubles()
    assert "[pause] limit" in str(words)


@pytest.mark.parametrize("later", [Paused.pause, Paused.go_on])
async def test_the_next_word_of_the_caller_ends_the_trouble(
    later: Callable[[Paused], object],
) -> None:
    paused = Paused(limit=0.02)
    paused.pause()
    await turn_until(lambda: bool(paused.troubles()))
    later(paused)
    assert paused.troubles()[-1] is None


async def test_asked_for_again_its_time_begins_anew() -> None:
    paused = Paused(limit=0.2)
    paused.pause()
    await asyncio.sleep(0.15)
    paused.pause()
    await asyncio.sleep(0.15)
    assert paused.now.stands
    assert paused.go_on()
    await asyncio.sleep(0.1)
    assert not any(paused.troubles())


async def test_it_may_be_ended_where_none_stands() -> None:
    paused = Paused()
    assert not paused.go_on()
    assert paused.names() == []


async def test_no_more_wait_than_may() -> None:
    paused = Paused(max_held=2)
    paused.pause()
    asking = await held(paused, 2)
    with pytest.raises(NotServing) as refused:
        await paused.ask()
    assert (refused.value.code, refused.value.retry_after) == ("too_many_held", 1)
    paused.now.max_held = 3
    asking.append(asyncio.create_task(paused.ask()))
    await turn_until(lambda: paused.now.held == 3)
    paused.go_on()
    assert [await each for each in asking] == [1, 1, 1]


async def test_where_nobody_is_to_wait_they_are_refused() -> None:
    paused = Paused(hold_arrivals=False)
    paused.pause()
    with pytest.raises(NotServing) as refused:
        await paused.ask()
    assert refused.value.code == "paused"


async def test_a_limit_of_zero_forbids_it() -> None:
    paused = Paused(limit=0)
    with pytest.raises(BadRequest) as refused:
        paused.pause()
    assert refused.value.code == "pause_forbidden"
    assert await paused.ask() == 1


async def test_a_stop_refuses_those_held() -> None:
    paused = Paused()
    paused.pause()
    (asking,) = await held(paused)
    paused.entrance.seal("hotreload is stopping", code="stopping")
    with pytest.raises(NotServing) as refused:
        await asking
    assert refused.value.code == "stopping"


async def test_a_lost_engine_leaves_them_waiting_for_another() -> None:
    paused = Paused()
    paused.pause()
    (asking,) = await held(paused)
    paused.entrance.gates[0].seal("it died", code="engine_lost")
    await asyncio.sleep(0)
    assert not asking.done()
    paused.go_on()
    assert await asking == 1


async def test_who_leaves_is_not_counted_any_more() -> None:
    paused = Paused()
    paused.pause()
    (asking,) = await held(paused)
    asking.cancel()
    await turn_until(lambda: paused.now.held == 0)


async def test_before_anything_is_live_they_hear_that_it_boots() -> None:
    entrance = Entrance[str](print)
    pause = Pause(print, look_again=entrance.look_again, limit=LONG)
    entrance.admissions = (pause,)
    pause.begin(TRAINER, "abort", RunningRequests.ABORT)
    with pytest.raises(NotServing) as refused:
        async with entrance.admit():
            pass
    assert refused.value.code == "booting"
    pause.end(TRAINER)
