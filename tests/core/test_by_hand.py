"""What an operator made live by hand: who did, what it overrules, and for how long."""

from dataclasses import replace
from functools import partial

import pytest

from hotreload.core.ledger import Overrule
from hotreload.errors import NothingOfThatName, SourceUnavailable
from hotreload.events import OperatorAsked, RevisionWanted
from hotreload.types import Generation, Noise, Outcome, Revision
from tests.core.conftest import World, by

FIRST = Revision("first", "step_0")
ONE, TWO, THREE = (Revision(f"r{n}", f"step_{n}") for n in (1, 2, 3))


def is_live(world: World, revision: Revision) -> bool:
    return world.replica.live.revision == revision


async def live(world: World, *revisions: Revision) -> None:
    for revision in revisions:
        world.source.publish(revision)
        await world.until(partial(is_live, world, revision))
    await world.until(lambda: bool(world.attempts) and world.attempts[-1].revision == revisions[-1])


def restarted(world: World, revision: Revision) -> World:
    """The next life, on the same state file, that booted from this revision."""
    again = World(world.source.folder, world.reconciler.rules)
    ledger = world.restarted_ledger()
    fingerprint = f"fp-{revision.id}"
    again.replica.live = again.replicas.live = Generation(
        ledger.next_number - 1, revision, fingerprint, 0.0
    )
    ledger.went_live(again.replica.live, "")
    again.ledger = again.reconciler.ledger = ledger
    again.reconciler.attempts.ledger = ledger
    again.source.known |= world.source.known
    return again


async def heard(world: World, wish: Revision) -> None:
    """No event tells of a wish that comes to nothing."""
    await world.rests()
    assert world.ledger.wished == wish


async def test_a_reload_of_an_older_one_overrules_the_source_and_says_who_did(
    world: World,
) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        attempt = await (await world.operator.reload(ONE.label))
        assert world.ledger.overruled == Overrule(ONE, TWO, by("reload"))
    wishes = [e.revision for e in world.happened if isinstance(e, RevisionWanted)]
    assert wishes == [ONE, TWO, ONE]
    assert (attempt.outcome, attempt.by) == (Outcome.LIVE, by("reload"))
    assert [each.by for each in world.ledger.attempts] == [by("reload"), None, None]


async def test_what_overrules_the_source_holds_after_a_restart_until_a_new_wish(
    world: World,
) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await (await world.operator.reload(ONE.label))
    again = restarted(world, ONE)
    async with again.running():
        again.source.publish(TWO)  # as before the restart
        await heard(again, TWO)
        assert again.attempts == []
        assert again.ledger.overruled == Overrule(ONE, TWO, by("reload"))
        assert [e.revision for e in again.happened if isinstance(e, RevisionWanted)] == [ONE]
        again.source.publish(THREE)
        assert (await again.attempted()).outcome is Outcome.LIVE
        assert again.ledger.overruled is None
    assert again.replica.live.revision == THREE


async def test_what_could_not_be_booted_again_overrules_nothing(world: World) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await (await world.operator.reload(ONE.label))
    again = restarted(world, FIRST)
    async with again.running():
        again.source.publish(TWO)
        assert (await again.attempted()).revision == TWO


async def test_a_rollback_overrules_too_and_the_newest_by_hand_does_not(world: World) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await (await world.operator.rollback())
        assert world.ledger.overruled == Overrule(ONE, TWO, by("rollback"))
        await (await world.operator.reload(TWO.label, force=True))
        assert world.ledger.overruled is None


async def test_what_is_done_before_the_source_has_looked_is_not_undone_by_what_it_finds(
    world: World,
) -> None:
    async with world.running():
        await live(world, ONE, TWO)
    again = restarted(world, TWO)
    async with again.running():
        await (await again.operator.reload(ONE.label))
        again.source.publish(TWO)  # as before the restart
        await heard(again, TWO)
        assert again.replica.live.revision == ONE


async def test_noise_leaves_an_overruling_as_it_is(world: World) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await (await world.operator.reload(ONE.label))
        await (await world.operator.perturb(Noise(num_leaves=1)))
        assert world.replica.live.revision.is_noise
        assert world.ledger.overruled == Overrule(ONE, TWO, by("reload"))
    again = restarted(world, ONE)
    async with again.running():
        again.source.publish(TWO)
        await heard(again, TWO)
    assert again.attempts == []


async def test_a_source_that_begins_anew_does_not_undo_what_was_done_by_hand(
    world: World,
) -> None:
    async with world.running():
        await live(world, ONE, TWO)
        await (await world.operator.reload(ONE.label))
        world.source.publish(TWO)  # as after a fault in it
        await world.rests()
    assert world.replica.live.revision == ONE
    assert len(world.attempts) == 3


async def test_of_equal_weights_a_rollback_tells_and_keeps_the_revision_it_was_asked_for(
    world: World,
) -> None:
    """Resharded, the same weights are another revision; the one in memory is not the one named."""
    async with world.running():
        await live(world, ONE, TWO)
        slot = world.replica.previous
        assert slot is not None
        place = world.ledger.past(1)
        assert place is not None
        world.ledger.generations[0] = replace(place, fingerprint=slot.fingerprint)
        attempt = await (await world.operator.rollback(1))
        await world.rests()
        assert world.replica.live.revision == attempt.revision == FIRST
        assert world.ledger.wanted == FIRST
    assert [each.revision for each in world.attempts] == [ONE, TWO, FIRST]


async def test_the_trace_of_an_ask_is_bounded_whatever_was_named(world: World) -> None:
    async with world.running():
        with pytest.raises(SourceUnavailable):
            await world.operator.reload("x" * 10**6)
    (told,) = (each for each in world.happened if isinstance(each, OperatorAsked))
    assert told.wish is not None
    assert told.refusal is not None
    assert len(told.wish) + len(told.refusal) < 3000


async def test_every_ask_leaves_a_trace_also_one_that_is_not_even_tried(world: World) -> None:
    async with world.running():
        await live(world, ONE)
        with pytest.raises(NothingOfThatName):
            await world.operator.rollback(7)
        await (await world.operator.rollback())
        await (await world.operator.perturb(Noise(num_leaves=1)))
    told = [each for each in world.happened if isinstance(each, OperatorAsked)]
    assert [(each.by.verb, each.wish, each.refusal is None) for each in told] == [
        ("rollback", "7", False),
        ("rollback", None, True),
        ("perturb", str(Noise(num_leaves=1)), True),
    ]
    assert "is not remembered" in str(told[0].refusal)
    assert [each.by and each.by.reason for each in world.attempts] == [
        None,
        "why rollback",
        "why perturb",
    ]
