"""A conversation is answered by the weights that it began with, or hears that they are gone."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.core.way_in.admission import Conditions
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import ExactWeights
from hotreload.errors import GenerationGone
from hotreload.features.sessions import sessions as module
from hotreload.features.sessions.sessions import Sessions
from hotreload.types import Generation, Lease, Mode, Outcome, Revision, Staged
from tests.core.conftest import World
from tests.core.overlapping import Overlapping
from tests.fakes import HANG
from tests.waiting import turn_until

NEW, NEWER = Revision("new", "step_1"), Revision("newer", "step_2")
LONG = 60.0


def generation(number: int, says: str) -> Generation:
    return Generation(number, Revision(says), f"fp-{says}", 0.0)


def lease(made: Generation, engine: int = 0) -> Lease[str]:
    weights = Staged(made.revision, object(), made.fingerprint, {}, 0)
    return Lease(made, f"engine {engine}", weights)


ONE, TWO, THREE = generation(1, "a"), generation(2, "b"), generation(3, "a")


class Talks:
    """An entrance to several engines whose gates a test turns by hand, and who asks there."""

    def __init__(self, keep: float = LONG, replicas: int = 1) -> None:
        self.sessions = Sessions(keep)
        self.entrance = Entrance[str](
            lambda event: None, replicas=replicas, admissions=(self.sessions,)
        )
        self.first = [lease(ONE, index) for index in range(replicas)]
        for gate, first in zip(self.entrance.gates, self.first, strict=True):
            gate.open(first)

    async def turn(
        self, session: str | None = None, exactly: ExactWeights | None = None, at_least: int = 0
    ) -> str:
        async with self.entrance.admit(Conditions(at_least, 5, exactly, session)) as let_in:
            return f"{let_in.generation.number} on {let_in.engine}"

    async def is_refused(
        self, session: str | None = None, exactly: ExactWeights | None = None, at_least: int = 0
    ) -> str:
        with pytest.raises(GenerationGone) as gone:
            await self.turn(session, exactly, at_least)
        assert gone.value.code == "generation_gone"
        return str(gone.value)


# --- exactly these weights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        ExactWeights(number=1),
        ExactWeights(fingerprint="fp-a"),
        ExactWeights(weight_version="1"),
        ExactWeights(1, "fp-a", "1"),
    ],
)
async def test_who_names_weights_is_answered_by_them_as_long_as_they_answer(
    wanted: ExactWeights,
) -> None:
    talks = Talks()
    assert await talks.turn(exactly=wanted) == "1 on engine 0"
    async with talks.entrance.admit():
        talks.entrance.gates[0].change(lease(TWO))
        assert await talks.turn(exactly=wanted) == "1 on engine 0"
        assert await talks.turn() == "2 on engine 0"
    words = await talks.is_refused(exactly=wanted)
    assert "live is generation 2, fingerprint fp-b, weight_version 2" in words


@pytest.mark.parametrize(
    "wanted", [ExactWeights(2), ExactWeights(1, "fp-b"), ExactWeights(None, None, "v7")]
)
async def test_weights_that_nobody_has_are_refused_at_once(wanted: ExactWeights) -> None:
    talks = Talks()
    assert str(wanted) in await talks.is_refused(exactly=wanted)


async def test_who_wants_older_weights_and_newer_ones_hears_that_it_cannot_be() -> None:
    talks = Talks()
    words = await talks.is_refused(exactly=ExactWeights(1), at_least=2)
    assert words.startswith("generation 1 and generation 2 or newer: ")


async def test_a_rollback_to_the_same_weights_is_the_same_to_who_names_their_fingerprint() -> None:
    talks = Talks()
    talks.entrance.gates[0].change(lease(TWO))
    talks.entrance.gates[0].change(lease(THREE))
    assert await talks.turn(exactly=ExactWeights(fingerprint="fp-a")) == "3 on engine 0"
    await talks.is_refused(exactly=ExactWeights(number=1))


# --- conversations --------------------------------------------------------------------------------


async def test_a_conversation_goes_on_by_the_weights_it_began_with() -> None:
    talks = Talks()
    gate = talks.entrance.gates[0]
    assert await talks.turn("old") == "1 on engine 0"
    gate.change(lease(TWO))
    assert gate.is_needed(talks.first[0].weights)  # type: ignore[arg-type]  # it has some
    assert await talks.turn("young") == "2 on engine 0"
    for _ in range(3):
        assert await talks.turn("old") == "1 on engine 0"
        assert await talks.turn("young") == "2 on engine 0"
        assert await talks.turn() == "2 on engine 0"
    assert [(each.generation.number, each.requests) for each in gate.list_answering()] == [(2, 0)]


async def test_after_its_time_its_weights_end_and_it_hears_so_each_time() -> None:
    talks = Talks(keep=0.05)
    gate = talks.entrance.gates[0]
    await talks.turn("old")
    gate.change(lease(TWO))
    await asyncio.wait_for(gate.until(lambda: not gate.is_needed(talks.first[0].weights)), 5)  # type: ignore[arg-type]  # it has some
    for _ in range(3):
        assert "fingerprint fp-a" in await talks.is_refused("old")
    assert await talks.turn("another") == "2 on engine 0"


async def test_each_request_gives_it_more_time_and_one_that_runs_all_it_needs() -> None:
    talks = Talks(keep=0.2)
    await talks.turn("old")
    talks.entrance.gates[0].change(lease(TWO))
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert await talks.turn("old") == "1 on engine 0"
    async with talks.entrance.admit(Conditions(session="old")):
        await asyncio.sleep(0.3)
    assert await talks.turn("old") == "1 on engine 0"


async def test_idle_for_long_it_goes_on_if_nothing_went_live_meanwhile() -> None:
    talks = Talks(keep=0.01)
    await talks.turn("old")
    await asyncio.sleep(0.05)
    assert await talks.turn("old") == "1 on engine 0"


async def test_two_that_begin_it_at_once_are_answered_by_the_same() -> None:
    talks = Talks()
    gate = talks.entrance.gates[0]
    gate.hold()
    held = asyncio.create_task(talks.turn("new"))
    await turn_until(lambda: gate.held == 1)
    gate.open(talks.first[0])
    assert await talks.turn("new") == "1 on engine 0"
    gate.change(lease(TWO))  # before the one who was held has looked
    assert await held == "1 on engine 0"


async def test_where_there_are_none_names_mean_nothing() -> None:
    talks = Talks(keep=0)
    await talks.turn("old")
    talks.entrance.gates[0].change(lease(TWO))
    assert await talks.turn("old") == "2 on engine 0"
    assert len(talks.sessions) == 0


async def test_a_conversation_that_names_other_weights_is_refused() -> None:
    talks = Talks()
    await talks.turn("old")
    async with talks.entrance.admit():
        talks.entrance.gates[0].change(lease(TWO))
        await talks.is_refused("old", ExactWeights(number=2))
        assert await talks.turn("old", ExactWeights(number=1)) == "1 on engine 0"


async def test_where_one_set_answers_at_a_time_a_swap_ends_every_conversation() -> None:
    talks = Talks()
    gate = talks.entrance.gates[0]
    gate.open(Lease(ONE, "engine 0"))
    await talks.turn("old")
    gate.hold()
    held = asyncio.create_task(talks.turn("old"))
    await turn_until(lambda: gate.held == 1)
    assert gate.inside == 0
    gate.open(Lease(TWO, "engine 0"))
    with pytest.raises(GenerationGone):
        await held
    gate.hold()
    gate.open(Lease(THREE, "engine 0"))  # the same weights again
    assert await talks.turn("old") == "3 on engine 0"


# --- several engines ------------------------------------------------------------------------------


async def test_it_goes_to_the_engine_that_answered_it_while_that_has_its_weights() -> None:
    talks = Talks(replicas=3)
    begun = await talks.turn("old")
    for _ in range(4):
        await talks.turn()  # the engines take turns
        assert await talks.turn("old") == begun
    for index, gate in enumerate(talks.entrance.gates):
        gate.change(lease(TWO, index))
    assert await talks.turn("old") == begun


@pytest.mark.parametrize("how", ["closed", "lost", "turned out"])
async def test_else_it_goes_to_another_one_that_has_them(how: str) -> None:
    talks = Talks(replicas=2)
    begun = await talks.turn("old")
    own = talks.entrance.gates[int(begun[-1])]
    assert own.lease is not None
    match how:
        case "closed":
            own.hold()
        case "lost":
            own.seal("it died", code="engine_lost")
            talks.entrance.renew(own.replica)
        case _:
            weights = own.lease.weights
            own.change(lease(TWO, own.replica))
            assert own.turn_out(weights) == 1  # type: ignore[arg-type]  # it has some
    other = f"1 on engine {1 - own.replica}"
    assert [await talks.turn("old") for _ in range(2)] == [other, other]


async def test_who_waits_at_a_closed_gate_goes_where_its_weights_are_let_in_first() -> None:
    talks = Talks(replicas=2)
    await talks.turn("old")
    for gate in talks.entrance.gates:
        gate.hold()
    held = asyncio.create_task(talks.turn("old"))
    await turn_until(lambda: talks.entrance.held == 1)
    talks.entrance.gates[0].open(lease(TWO, 0))
    talks.entrance.gates[1].open(talks.first[1])
    assert await held == "1 on engine 1"


# --- bounds ---------------------------------------------------------------------------------------


async def test_no_more_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 3)
    talks = Talks()
    async with talks.entrance.admit(Conditions(session="runs")):
        for name in "abcde":
            await talks.turn(name)
            assert len(talks.sessions) <= 3
        talks.entrance.gates[0].change(lease(TWO))
        assert await talks.turn("runs") == "1 on engine 0"
        assert await talks.turn("e") == "1 on engine 0"
        assert await talks.turn("a") == "2 on engine 0"  # forgotten: it begins anew


async def test_while_all_that_may_be_are_under_way_a_new_one_is_answered_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 1)
    talks = Talks()
    async with talks.entrance.admit(Conditions(session="runs")):
        assert await talks.turn("new") == "1 on engine 0"
        talks.entrance.gates[0].change(lease(TWO))
        assert [await talks.turn(name) for name in ("new", "runs")] == [
            "2 on engine 0",
            "1 on engine 0",
        ]
        assert len(talks.sessions) == 1
    assert await talks.turn("new") == "2 on engine 0"
    assert len(talks.sessions) == 1


async def test_one_under_way_keeps_none_of_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_SECONDS", 0.0)
    talks = Talks(keep=0.01)
    async with talks.entrance.admit(Conditions(session="runs")):
        await talks.turn("a")
        await asyncio.sleep(0.05)
        await talks.turn("b")
        assert len(talks.sessions) == 2


async def test_what_was_used_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_SECONDS", 0.0)
    talks = Talks(keep=0.01)
    await talks.turn("a")
    await asyncio.sleep(0.05)
    await talks.turn("b")
    assert len(talks.sessions) == 1


# --- with the core --------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Overlapping:
    return Overlapping(tmp_path, Rules(sets=2, finish_timeout=0.5, keep_previous=KeepPrevious.NONE))


def in_sessions(world: World, keep: float = LONG) -> Callable[[str], Awaitable[str]]:
    """How a conversation asks, where lanes are kept for those."""
    world.entrance.admissions = (Sessions(keep),)

    async def turn(session: str) -> str:
        async with world.entrance.admit(Conditions(session=session)) as let_in:
            return f"{let_in.generation.number}: {let_in.engine.answer(let_in.weights)}"

    return turn


async def test_the_lane_of_a_conversation_stays_open_and_ends_after_its_time(
    world: Overlapping,
) -> None:
    turn = in_sessions(world, keep=0.3)
    async with world.running():
        assert await turn("old") == "1: first clean"
        world.source.publish(NEW)
        await world.attempted()
        assert await turn("old") == "1: first clean"
        assert await turn("young") == "2: new clean"
        assert world.ended == []
        await world.until(lambda: world.ended == [1])
        with pytest.raises(GenerationGone):
            await turn("old")
    assert world.engine.sets_held == 1


async def test_a_swap_that_needs_the_room_goes_before_conversations(world: Overlapping) -> None:
    turn = in_sessions(world)
    async with world.running():
        await turn("old")
        world.source.publish(NEW)
        await world.attempted()
        await asyncio.sleep(0.6)  # longer than finish_timeout: nobody ran in vain
        await turn("middle")
        world.source.publish(NEWER)
        attempt = await world.attempted(2)
        assert attempt.outcome is Outcome.LIVE
        with pytest.raises(GenerationGone):
            await turn("old")
        assert await turn("middle") == "2: new clean"
        assert await turn("young") == "3: newer clean"
    assert world.ended == [1]


async def test_while_a_swap_waits_for_their_room_no_conversation_goes_on(
    world: Overlapping,
) -> None:
    turn = in_sessions(world)
    async with world.running():
        async with world.entrance.admit(Conditions(session="old")):
            world.source.publish(NEW)
            await world.attempted()
            assert await turn("old") == "1: first clean"
            world.source.publish(NEWER)
            await world.until(lambda: world.waiting_for is not None)
            with pytest.raises(GenerationGone):
                await turn("old")
        assert (await world.attempted(2)).outcome is Outcome.LIVE


async def test_a_rollback_ends_conversations_with_what_it_leaves_and_spares_others(
    world: Overlapping,
) -> None:
    turn = in_sessions(world)
    async with world.running():
        await turn("old")
        world.source.publish(NEW)
        await world.attempted()
        await turn("bad")
        await (await world.operator.rollback())
        assert await world.ask() == "3: first clean"
        assert (await turn("old")).endswith(": first clean")
        with pytest.raises(GenerationGone):
            await turn("bad")
        await world.until(lambda: 2 in world.ended)


async def test_conversations_hold_up_no_swap_that_drains(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(drain_timeout=0.5), mode=Mode.DRAIN)
    turn = in_sessions(world)
    async with world.running():
        assert await turn("old") == "1: first clean"
        world.source.publish(NEW)
        assert (await world.attempted()).outcome is Outcome.LIVE
        with pytest.raises(GenerationGone):
            await turn("old")


async def test_what_was_tried_on_some_engines_and_left_again_answers_no_conversation(
    tmp_path: Path,
) -> None:
    world = Overlapping(tmp_path, Rules(probe_timeout=60.0), engines=2)
    turn = in_sessions(world)
    world.engines[1].steps.faults["prove"] = HANG
    async with world.running():
        world.source.publish(NEW)
        await turn_until(lambda: world.each[0].live.number == 2)
        begun = {name: await turn(name) for name in "abcd"}
        assert sorted(set(begun.values())) == ["1: first clean", "2: new clean"]
        assert (await (await world.operator.rollback())).outcome is Outcome.LIVE
        for name, said in begun.items():
            if said == "1: first clean":
                assert await turn(name) == said
            else:
                with pytest.raises(GenerationGone):
                    await turn(name)


@pytest.mark.parametrize("is_inside", [True, False], ids=["under way", "between two turns"])
async def test_a_conversation_goes_by_the_new_name_when_others_are_live(
    tmp_path: Path, is_inside: bool
) -> None:
    world = World(tmp_path, Rules(), mode=Mode.OVERLAP)
    world.entrance.admissions = (Sessions(LONG),)
    world.source.known[NEW.label] = NEW

    async def turn(version: str | None = None) -> str:
        exactly = ExactWeights(weight_version=version) if version else None
        async with world.entrance.admit(Conditions(exactly=exactly, session="talk")) as lease:
            return lease.generation.weight_version

    async with world.running(), AsyncExitStack() as inside:
        assert await turn() == "1"
        if is_inside:
            await inside.enter_async_context(world.entrance.admit(Conditions(session="talk")))
        await world.operator.name_live("1b")
        await (await world.operator.reload(NEW.label))
        assert [await turn(), await turn("1b")] == ["1b", "1b"]
        with pytest.raises(GenerationGone):
            await turn("1")
