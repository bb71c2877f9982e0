"""What /checkpoints says of each folder or commit: why it is not live."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hotreload.attempts import By
from hotreload.core.ledger import Ledger
from hotreload.events import AttemptFinished, Event, PhaseEntered, SourceScanned
from hotreload.facts.listed import Listed, ListedState
from hotreload.json_fields import iso as iso_of
from hotreload.picture.checkpoints import LONGEST_WHY, Checkpoints
from hotreload.picture.picture import Picture
from hotreload.types import NOISY, Generation, Outcome, Phase, Reason, Revision
from tests.observe.things import NOON, ended, rejected

ONE, TWO, THREE = (Revision(str(n) * 8, f"step_{n}") for n in (1, 2, 3))
BY = By("rollback", 0, 7, NOON)


def ledger(live: Revision | None = TWO) -> Ledger:
    """One in which step_1 and then this revision went live."""
    made = Ledger()
    for number, revision in enumerate((ONE, live), 1):
        if live is not None and revision is not None:
            generation = Generation(number, revision, f"fp-{revision.id}", NOON + number)
            made.went_live(generation, f"/run/{revision.label}")
    return made


def seen(revision: Revision, standing: ListedState = ListedState.OLDER, why: str = "") -> Listed:
    path = f"/run/{revision.label}"
    return Listed(revision.label, standing, why, revision=revision, path=path, written_at=NOON)


def unread(revision: Revision, written_at: float = NOON) -> Listed:
    return replace(seen(revision, why="older than step_3"), revision=None, written_at=written_at)


NEWEST = seen(THREE, ListedState.NEWEST)


async def told(
    known: Ledger, *listed: Listed, events: Sequence[Event] = (), most: int = 100
) -> Any:
    picture = Picture(known, wall=lambda: NOON)
    checkpoints = Checkpoints(picture, lambda: listed, clock=lambda: 100.0)
    for event in events:
        picture.observe(event)
    return await checkpoints.snapshot(most)


async def row(known: Ledger, each: Listed, *events: Event) -> dict[str, Any]:
    said = await told(known, each, events=events)
    found: dict[str, Any] = said["checkpoints"][-1]
    return found


async def test_what_is_live_and_what_was_before_it_are_named_with_their_generations() -> None:
    said = await told(ledger(), seen(TWO), seen(ONE))
    rows = [(row["name"], row["state"], row["generation"]) for row in said["checkpoints"]]
    assert rows == [("step_2", "live", 2), ("step_1", "previous", 1)]
    assert said["checkpoints"][0]["since"] == iso_of(NOON + 2)


async def test_what_is_live_is_listed_also_when_the_source_does_not_see_it() -> None:
    known = ledger(Revision(f"{NOISY}1", "step_1 + noise"))
    said = await told(known, NEWEST)
    rows = [(row["name"], row["state"], row["why"]) for row in said["checkpoints"]]
    unseen = "the source does not see it; it came from /run/"
    assert rows[:2] == [
        ("step_1 + noise", "live", f"{unseen}step_1 + noise"),
        ("step_1", "previous", f"{unseen}step_1"),
    ]


async def test_after_a_restart_a_folder_is_known_by_where_it_lies_unless_somebody_wrote_to_it() -> (
    None
):
    """The source reads the bytes of the newest folder alone."""
    assert (await row(ledger(), unread(TWO)))["state"] == "live"
    (other, *more) = (await told(ledger(), unread(TWO, NOON + 60), seen(ONE)))["checkpoints"]
    assert (other["name"], other["state"], other["generation"]) == ("step_2", "live", 2)
    assert other["why"].startswith("its files were written anew since, and not read again")
    assert [each["name"] for each in more] == ["step_1"]


async def test_one_that_was_live_long_ago_says_as_which_generation() -> None:
    known = ledger()
    known.went_live(Generation(3, THREE, "fp-3", NOON + 3), "/run/step_3")
    assert (await row(known, unread(ONE)))["generation"] == 1


def _refused(known: Ledger) -> None:
    known.refuse(THREE, Reason("nonfinite", "lm_head holds NaN"), NOON)


def _put_off(known: Ledger) -> None:
    memory = replace(ended(Outcome.POSTPONED), revision=THREE, reason=Reason("memory", "no room"))
    known.finish(memory, now=90.0, backoff=lambda failures: 30.0, rest=0.0)
    known.wish(THREE)


def _pinned(known: Ledger) -> None:
    known.wish(THREE)
    known.set_pinned(True, replace(BY, verb="pin"))


def _held(known: Ledger) -> None:
    known.wish(THREE)
    known.set_pinned(True, BY)


def _overruled_and_held(known: Ledger) -> None:
    _overruled(known)
    known.set_pinned(True, BY)


def _overruled(known: Ledger) -> None:
    known.wish(THREE)
    known.overrule(ONE, BY)


BACK = "rollback made step_1 (11111111) live instead; it stays until"
WHY_NOT: dict[str, tuple[Callable[[Ledger], object], str, str]] = {
    "refused": (_refused, "refused", "lm_head holds NaN"),
    "put off": (_put_off, "waiting", "put off: memory: no room; step_3 (33333333) is tried again"),
    "pinned": (_pinned, "waiting", "step_3 (33333333) is wanted, and a pin holds generation 2"),
    "held": (_held, "waiting", "step_3 (33333333) is wanted, and a rollback holds generation 2"),
    "overruled": (_overruled, "waiting", f"{BACK} the source wishes something new"),
    "overruled and held": (_overruled_and_held, "waiting", f"{BACK} hotreload unpin"),
    "next": (lambda known: known.wish(THREE), "waiting", "its attempt is next"),
    "not wished": (lambda known: None, "waiting", "the source has not wished for it yet"),
}


@pytest.mark.parametrize("name", WHY_NOT)
async def test_the_newest_says_why_it_is_not_live(name: str) -> None:
    prepare, state, why = WHY_NOT[name]
    known = ledger()
    prepare(known)
    said = await row(known, NEWEST)
    assert said["state"] == state
    assert said["why"].startswith(why)


async def test_while_the_daemon_starts_it_says_that_nothing_is_live_yet() -> None:
    said = await row(ledger(live=None), NEWEST)
    assert said["why"] == "the daemon starts: nothing is live yet"


async def test_the_attempt_under_way_is_named_with_its_phase_until_it_ends() -> None:
    entered = PhaseEntered(THREE, Phase.STAGING)
    said = await row(ledger(), NEWEST, entered)
    assert (said["state"], said["why"]) == ("trying", "staging")
    over = AttemptFinished(replace(rejected(), revision=THREE), None)
    assert (await row(ledger(), NEWEST, entered, over))["state"] == "waiting"


async def test_what_the_source_waits_for_and_what_is_no_checkpoint_is_told_in_its_words() -> None:
    late = replace(NEWEST, standing=ListedState.WAITING, why="2 of 4 shards", revision=None)
    odd = Listed("step_9", ListedState.ODD, "holds a pickle", "format")
    waits, no_checkpoint = await row(ledger(), late), await row(ledger(), odd)
    assert (waits["state"], waits["why"]) == ("waiting", "2 of 4 shards")
    assert no_checkpoint["state"] == "not a checkpoint"
    assert (no_checkpoint["code"], no_checkpoint["why"]) == ("format", "holds a pickle")


async def test_thousands_are_counted_and_the_newest_shown_with_what_is_of_note() -> None:
    many = (replace(unread(THREE), name=f"step_{n}", path="") for n in range(5000))
    said = await told(ledger(), *many, seen(TWO), seen(ONE), most=10)
    assert [row["state"] for row in said["checkpoints"]] == ["older"] * 10 + ["live", "previous"]
    assert said["total"] == 5002
    assert said["states"] == {"older": 5000, "live": 1, "previous": 1}


async def test_long_words_are_cut() -> None:
    odd = Listed("step_9", ListedState.ODD, "x" * 5000, "format")
    assert len((await row(ledger(), odd))["why"]) == LONGEST_WHY + 1


async def test_it_says_as_of_when_it_is_and_whether_the_source_cannot_look() -> None:
    said = await told(ledger())
    assert (said["looked_at"], said["error"]) == (None, None)
    looks = [SourceScanned("start"), SourceScanned("rescan", "Permission denied")]
    said = await told(ledger(), events=looks)
    assert (said["looked_at"], said["error"]) == (iso_of(NOON), "Permission denied")
