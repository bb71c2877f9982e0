"""Rank 0 takes all others through the same steps, and does nothing that one of them is against."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hotreload.errors import (
    CheckpointIncompatible,
    CheckpointRejected,
    EngineLost,
    NotEnoughMemory,
    ProbeFailed,
    TryAgain,
)
from hotreload.hosts.upstream.ranks import Store
from hotreload.hosts.vote import (
    Ballot,
    Chair,
    Follower,
    Step,
    Vote,
    ballot_against,
    check_same,
    check_votes,
)
from tests.hosts.memory import MemoryStore
from tests.hosts.test_store import KINDS

PATIENCE = 30.0


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest) -> Iterator[list[Store]]:
    with KINDS[request.param]() as made:
        yield list(made)


class Doing:
    """What a rank does at each step: nothing, or what a test puts there."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Step] = asyncio.Queue()
        self.given_up: list[str] = []
        self.fault: Exception | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, step: Step) -> Mapping[str, str]:
        self.begun.put_nowait(step)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.given_up.append(step.name)
            raise
        if self.fault is not None:
            raise self.fault
        return {"made": step.about.get("of", "")}


@asynccontextmanager
async def following(store: Store, do: Any, rank: int = 1) -> AsyncIterator[None]:
    task = asyncio.create_task(Follower(store, rank).follow(do))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def asked(chair: Chair, name: str, within: float = PATIENCE) -> list[Ballot]:
    step = await chair.call(name, {"of": name})
    return await chair.receive_votes(step, within)


@pytest.fixture
def numbered(stores: list[Store]) -> Iterator[list[Store]]:
    """A store without the steps of the test before."""
    yield stores
    for number in range(1, 20):
        stores[0].forget(f"hotreload/step/{number}")


async def test_every_step_is_taken_in_order_and_what_came_of_it_is_told(
    numbered: list[Store],
) -> None:
    chair, doing = Chair(numbered[0], [1]), Doing()
    async with following(numbered[1], doing):
        for name in ("stage", "prove", "flip"):
            assert await asked(chair, name) == [Ballot(1, results={"made": name})]
    assert [doing.begun.get_nowait().name for _ in range(3)] == ["stage", "prove", "flip"]


async def test_steps_that_all_have_left_behind_are_forgotten(numbered: list[Store]) -> None:
    chair = Chair(numbered[0], [1])
    async with following(numbered[1], Doing()):
        for name in ("one", "two", "three"):
            await asked(chair, name)
        # One that is there is told at once, however busy the machine is.
        within = {1: 0.01, 2: 0.01, 3: PATIENCE}
        held = [numbered[0].get(f"hotreload/step/{each}", within[each]) for each in within]
    assert [each is None for each in held] == [True, True, False]


async def test_a_rank_that_is_against_it_says_why(numbered: list[Store]) -> None:
    chair, doing = Chair(numbered[0], [1]), Doing()
    doing.fault = CheckpointIncompatible("tensor 'a' is missing", findings=["a", "b"])
    async with following(numbered[1], doing):
        step = await chair.call("stage")
        ballots = await chair.receive_votes(step, PATIENCE)
        with pytest.raises(CheckpointRejected, match="rank 1: tensor 'a'") as refused:
            check_votes(step, ballots, [1])
        assert (refused.value.code, refused.value.findings) == ("incompatible", ("a", "b"))


async def test_a_rank_that_is_late_gives_up_when_the_next_step_comes(
    numbered: list[Store],
) -> None:
    chair, doing = Chair(numbered[0], [1]), Doing()
    doing.may_end.clear()
    async with following(numbered[1], doing):
        step = await chair.call("stage")
        await doing.begun.get()
        ballots = await chair.receive_votes(step, 0.05)
        with pytest.raises(TryAgain, match="rank 1 did not stage in time") as late:
            check_votes(step, ballots, [1])
        assert late.value.code == "late_rank"
        dropping = await chair.call("drop")
        await doing.begun.get()
        assert doing.given_up == ["stage"]
        doing.may_end.set()
        assert await chair.receive_votes(dropping, PATIENCE) == [Ballot(1, results={"made": ""})]
        assert await chair.receive_votes(step, 0.05) == []


async def test_the_first_that_is_against_it_ends_the_wait() -> None:
    store, slow, quick = MemoryStore(), Doing(), Doing()
    chair = Chair(store, [1, 2])
    slow.may_end.clear()
    quick.fault = NotEnoughMemory("no room")
    async with following(store, slow), following(store, quick, 2), asyncio.timeout(PATIENCE):
        ballots = await asked(chair, "stage", within=10 * PATIENCE)
    assert [(each.rank, each.vote) for each in ballots] == [(2, Vote.LATER)]


async def test_a_store_that_is_gone_ends_the_following() -> None:
    class Gone(MemoryStore):
        def get(self, key: str, within: float) -> str | None:
            raise EngineLost("rank 0 is gone")

    with pytest.raises(EngineLost, match="rank 0 is gone"):
        await Follower(Gone(), 1).follow(Doing())


def test_the_gravest_word_counts_and_the_others_are_told() -> None:
    ballots = [
        ballot_against(1, TryAgain("later")),
        Ballot(2),
        ballot_against(3, CheckpointRejected("torn", code="truncated")),
    ]
    with pytest.raises(CheckpointRejected) as refused:
        check_votes(Step(1, "stage"), ballots, [1, 2, 3])
    assert str(refused.value) == "rank 3: torn"
    assert refused.value.reason.findings == ("rank 1: later",)
    with pytest.raises(EngineLost, match="rank 4: gone"):
        check_votes(Step(1, "flip"), [*ballots, ballot_against(4, EngineLost("gone"))], [])


def test_a_fault_of_ours_on_another_rank_refuses_what_was_tried() -> None:
    (against,) = [ballot_against(1, KeyError("x"))]
    with pytest.raises(CheckpointRejected, match="rank 1: internal error: KeyError") as refused:
        check_votes(Step(1, "stage"), [against], [1])
    assert refused.value.code == "internal"


def test_a_bad_answer_on_another_rank_is_one_here() -> None:
    against = ballot_against(1, ProbeFailed("it talks nonsense"))
    with pytest.raises(ProbeFailed, match="rank 1: it talks nonsense"):
        check_votes(Step(1, "prove"), [against], [1])


def test_ranks_that_have_other_weights_do_not_go_on() -> None:
    same = [Ballot(1, results={"fingerprint": "aa"}), Ballot(2, results={"fingerprint": "aa"})]
    check_same(same, "fingerprint", "aa")
    with pytest.raises(TryAgain, match="rank 2 has another fingerprint, bb, than rank 0, aa"):
        check_same([same[0], Ballot(2, results={"fingerprint": "bb"})], "fingerprint", "aa")


@pytest.mark.parametrize(
    "ballot",
    [
        Ballot(1, results={"fingerprint": "aa"}),
        ballot_against(2, CheckpointIncompatible("ü", findings=["a", "b"])),
        ballot_against(3, EngineLost("gone")),
    ],
)
def test_a_ballot_comes_out_of_the_store_as_it_went_in(ballot: Ballot) -> None:
    assert Ballot.from_text(ballot.to_text()) == ballot
