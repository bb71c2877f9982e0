"""Weights that are known by what a stat says until they are staged, and then by their content."""

import asyncio
from dataclasses import replace

import pytest

from hotreload.core.decision import learn_all
from hotreload.core.ledger import Ledger
from hotreload.errors import CheckpointCorrupt
from hotreload.events import PhaseEntered, RevisionWanted
from hotreload.types import Checkpoint, Outcome, Phase, Reason, Revision, Staged
from tests.core.conftest import World
from tests.fakes import HANG

UNREAD_1, UNREAD_2 = Revision("unread-1", "step_1"), Revision("unread-2", "step_2")
BAD = Reason("probe", "it says nothing")


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What whoever stages these finds out that they are."""
    really, reads = world.engine.loaded, {"unread-1": "first", "unread-2": "r2"}

    async def loaded(checkpoint: Checkpoint) -> Staged:
        revision = checkpoint.revision
        if (id := reads.get(revision.id)) is not None:
            world.ledger.contents[revision.id] = id
        if id is not None and revision.is_unread:
            checkpoint = replace(checkpoint, revision=replace(revision, id=id))
        if id == "nan":
            raise CheckpointCorrupt("NaN", code="nonfinite")
        return await really(checkpoint)

    monkeypatch.setattr(world.engine, "loaded", loaded)
    return reads


def phases(world: World) -> list[Phase | None]:
    return [event.phase for event in world.happened if isinstance(event, PhaseEntered)]


def wanted(world: World) -> list[str]:
    return [event.revision.id for event in world.happened if isinstance(event, RevisionWanted)]


@pytest.mark.usefixtures("reads")
async def test_a_wish_goes_live_by_its_content(world: World) -> None:
    world.wish(UNREAD_2)
    assert (await world.rests()).until is None
    (attempt,) = world.attempts
    assert (attempt.outcome, attempt.revision) == (Outcome.LIVE, Revision("r2"))
    assert world.replica.live.revision == world.ledger.wanted == Revision("r2")
    assert (wanted(world), world.ledger.under_way) == (["r2"], None)


@pytest.mark.usefixtures("reads")
async def test_what_is_live_by_another_name_is_not_even_probed(world: World) -> None:
    before = world.replica.live
    world.wish(UNREAD_1)
    assert (await world.rests()).why is None
    assert (world.attempts, world.replica.live, world.ledger.under_way) == ([], before, None)
    assert Phase.STAGING in phases(world)
    assert (Phase.PROBING in phases(world), phases(world)[-1]) == (False, None)
    assert world.replica.staged is None
    assert world.restarted_ledger().under_way is None


async def test_what_was_refused_by_another_name_is_not_even_probed(
    world: World, reads: dict[str, str]
) -> None:
    reads["unread-2"] = "bad"
    world.ledger.refuse(Revision("bad", "step_0"), BAD, 1.0)
    world.wish(UNREAD_2)
    assert "is refused (probe)" in str((await world.rests()).why)
    assert (world.attempts, Phase.PROBING in phases(world)) == ([], False)
    world.ledger.contents.clear()  # a third folder has the same bytes
    world.source.known[UNREAD_2.label] = UNREAD_2
    promise = await world.operator.reload(UNREAD_2.label)
    await world.rests()
    answer = await promise
    assert (answer.outcome, answer.reason is not None) == (Outcome.REJECTED, True)
    assert "refused before" in str(answer.reason)


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("force", [False, True])
async def test_an_order_for_what_is_live_by_another_name_makes_a_generation_by_force_alone(
    world: World, force: bool
) -> None:
    world.source.known[UNREAD_1.label] = UNREAD_1
    promise = await world.operator.reload(UNREAD_1.label, force=force)
    await world.rests()
    answer = await promise
    assert (answer.outcome, answer.revision.id) == (Outcome.LIVE, "first")
    assert (answer.generation, len(world.attempts)) == ((2, 1) if force else (1, 0))


@pytest.mark.usefixtures("reads")
async def test_who_asks_for_it_by_its_content_waits_for_the_same_attempt(world: World) -> None:
    world.source.known[UNREAD_2.label] = UNREAD_2
    async with world.running():
        world.steps.faults["exchange"] = HANG
        first = await world.operator.reload(UNREAD_2.label)
        await world.steps.entered["exchange"].wait()
        world.source.known[UNREAD_2.label] = Revision("r2", UNREAD_2.label)
        second = await world.operator.reload(UNREAD_2.label)
        assert first is second
        del world.steps.faults["exchange"]
        world.steps.released["exchange"].set()
        assert (await asyncio.wait_for(second, 10)).outcome is Outcome.LIVE


async def test_what_a_first_reading_finds_refuses_the_content(
    world: World, reads: dict[str, str]
) -> None:
    reads["unread-2"] = "nan"
    world.wish(UNREAD_2)
    assert "is refused (nonfinite)" in str((await world.rests()).why)
    assert [each.revision.id for each in world.attempts] == ["nan"]
    assert list(world.ledger.refused) == ["nan"]


async def test_a_commit_is_refused_by_its_content_and_keeps_its_name(
    world: World, reads: dict[str, str]
) -> None:
    reads["commit"] = "the content of both"
    world.ledger.contents["other"] = "the content of both"
    world.ledger.refuse(Revision("other", "main"), BAD, 1.0)
    world.wish(Revision("commit", "main"))
    assert "is refused (probe)" in str((await world.rests()).why)
    (attempt,) = world.attempts
    assert (attempt.outcome, attempt.revision.id) == (Outcome.REJECTED, "commit")
    assert attempt.reason == Reason(
        "probe", "the same files were refused as main (other): it says nothing"
    )
    assert (Phase.STAGING in phases(world), Phase.PROBING in phases(world)) == (True, False)
    assert list(world.ledger.refused) == ["other", "commit"]


@pytest.mark.parametrize("way", ["known", "live", "force"])
async def test_where_a_commits_content_is_known_or_good(
    world: World, reads: dict[str, str], way: str
) -> None:
    reads["commit"] = world.ledger.contents["other"] = "the content of both"
    world.ledger.refuse(Revision("other", "main"), BAD, 1.0)
    world.source.known["main"] = Revision("commit", "main")
    if way == "live":
        world.ledger.contents[world.replica.live.revision.id] = "the content of both"
    if way == "known":
        world.ledger.contents["commit"] = "the content of both"
    promise = await world.operator.reload("main", force=way == "force")
    await world.rests()
    answer = await promise
    assert answer.outcome is (Outcome.REJECTED if way == "known" else Outcome.LIVE)
    assert (Phase.STAGING in phases(world)) is (way != "known")
    assert world.replica.live.revision.id == ("first" if way == "known" else "commit")


def test_a_death_before_it_was_read_counts_for_its_content() -> None:
    ledger = Ledger(under_way=UNREAD_2)
    learn_all(ledger)
    ledger.count_crash(1.0)
    assert ledger.crashes == {"unread-2": 1}
    ledger.contents["unread-2"] = "r2"  # the next life named it by its bytes
    ledger.begin(Revision("r2"))
    learn_all(ledger)
    ledger.count_crash(2.0)
    assert (ledger.crashes, list(ledger.refused)) == ({"r2": 2}, ["r2"])


def test_what_is_known_of_a_name_moves_to_the_content() -> None:
    ledger = Ledger(wanted=UNREAD_2, wished=UNREAD_2, under_way=UNREAD_2)
    ledger.failures, ledger.not_before = {"unread-2": 2, "r2": 1}, {"unread-2": 7.0}
    ledger.crashes, ledger.contents = {"unread-2": 1}, {"unread-2": "r2"}
    learn_all(ledger)
    assert ledger.under_way == ledger.wanted == ledger.wished == Revision("r2")
    assert (ledger.failures, ledger.not_before) == ({"r2": 3}, {"r2": 7.0})
