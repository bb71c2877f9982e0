import pytest

from hotreload.attempts import Attempt, By
from hotreload.core.decision import Sleep, decide, list_newer_refusals, list_worth_keeping
from hotreload.core.ledger import KEPT_ATTEMPTS, Ledger, PastGeneration
from hotreload.life.saved.state_json import from_json, to_json
from hotreload.types import NOISY, Generation, Outcome, Phase, Reason, Revision

A, B = Revision("a", "step_1"), Revision("b", "step_2")


def generation(number: int, revision: Revision) -> Generation:
    return Generation(number, revision, f"fp-{revision.id}", float(number))


def attempt(revision: Revision, outcome: Outcome, code: str = "shape") -> Attempt:
    reason = None if outcome is Outcome.LIVE else Reason(code, "words", ("one", "two"))
    return Attempt(revision, outcome, reason, {Phase.STAGING: 0.5}, 0.01, 7.0)


def finish(ledger: Ledger, made: Attempt, now: float = 0.0, rest: float = 0.0) -> None:
    ledger.finish(made, now=now, backoff=lambda failures: 10.0 * failures, rest=rest)


def serving(revision: Revision = A) -> Ledger:
    ledger = Ledger()
    ledger.went_live(generation(1, revision), "/checkpoints/a")
    return ledger


def restarted(ledger: Ledger) -> Ledger:
    return from_json(to_json(ledger))


def test_nothing_is_tried_while_nothing_is_wanted() -> None:
    assert decide(serving(), 0.0) == Sleep(None, None)


def test_what_is_live_already_is_not_tried_again() -> None:
    ledger = serving()
    ledger.wanted = Revision("a", "another name for the same bytes")
    assert decide(ledger, 0.0) == Sleep(None, None)


def test_a_new_wish_is_tried_at_once() -> None:
    ledger = serving()
    ledger.wanted = B
    assert decide(ledger, 0.0) == B


def test_a_refused_revision_is_not_tried_until_it_goes_live_by_force() -> None:
    ledger = serving()
    ledger.wanted = B
    finish(ledger, attempt(B, Outcome.REJECTED))
    decision = decide(ledger, 1e9)
    assert isinstance(decision, Sleep)
    assert "refused (shape)" in str(decision.why)
    ledger.went_live(generation(2, B), "/checkpoints/b")
    assert not ledger.refused


def test_a_postponed_revision_is_tried_again_later_and_later() -> None:
    ledger = serving()
    ledger.wanted = B
    finish(ledger, attempt(B, Outcome.POSTPONED), now=100.0)
    assert decide(ledger, 105.0) == Sleep(110.0, "step_2 (b) is tried again in 5 s")
    assert decide(ledger, 110.0) == B
    finish(ledger, attempt(B, Outcome.POSTPONED), now=110.0)
    assert decide(ledger, 129.0) == Sleep(130.0, "step_2 (b) is tried again in 1 s")


def test_another_revision_does_not_wait_for_the_backoff_of_the_first() -> None:
    ledger = serving()
    finish(ledger, attempt(B, Outcome.POSTPONED), now=100.0)
    ledger.wanted = Revision("c")
    assert decide(ledger, 100.0) == Revision("c")


def test_swaps_keep_their_distance() -> None:
    ledger = serving()
    finish(ledger, attempt(A, Outcome.LIVE), now=100.0, rest=60.0)
    ledger.wanted = B
    assert isinstance(decide(ledger, 159.0), Sleep)
    assert decide(ledger, 160.0) == B


def test_a_pin_holds_against_the_source() -> None:
    ledger = serving()
    ledger.wanted, ledger.pinned = B, True
    decision = decide(ledger, 0.0)
    assert isinstance(decision, Sleep)
    assert "pin" in str(decision.why)


def test_numbers_never_fall() -> None:
    ledger = serving()
    ledger.went_live(generation(2, B), "/b")
    ledger.went_live(generation(3, A), "/a")
    assert ledger.next_number == 4


def test_the_place_before_has_other_weights() -> None:
    ledger = serving()
    live = generation(3, A)
    ledger.went_live(generation(2, B), "/b")
    ledger.went_live(live, "/a")
    before = ledger.past_before(live)
    assert before is not None
    assert (before.number, before.path) == (2, "/b")


def test_the_place_before_is_not_one_that_was_rolled_back_from() -> None:
    ledger = serving()
    ledger.went_live(generation(2, B), "/b")
    ledger.refuse(B, Reason("rolled_back", "an operator"), 0.0)
    live = generation(3, A)
    ledger.went_live(live, "/a")
    assert ledger.past_before(live) is None


def test_the_last_good_generation_is_not_one_that_was_refused_since() -> None:
    ledger = serving()
    ledger.went_live(generation(2, B), "/b")
    ledger.refuse(B, Reason("rolled_back", "an operator"), 0.0)
    assert ledger.last_good is not None
    assert ledger.last_good.number == 1


def test_the_first_death_is_forgiven_and_the_second_refuses() -> None:
    ledger = serving()
    ledger.begin(B)
    ledger = restarted(ledger)
    ledger.count_crash(0.0)
    assert not ledger.refused
    ledger.begin(B)
    ledger = restarted(ledger)
    ledger.count_crash(0.0)
    assert ledger.refused["b"].reason.code == "crashed"


def test_an_engine_lost_twice_over_a_revision_refuses_it() -> None:
    ledger = serving()
    for _ in range(2):
        ledger.begin(B)
        finish(ledger, attempt(B, Outcome.LOST, "engine_lost"))
        ledger = restarted(ledger)
        ledger.count_crash(0.0)
    assert ledger.refused["b"].reason.code == "crashed"


def test_a_cancelled_attempt_is_no_death() -> None:
    ledger = serving()
    for _ in range(3):
        ledger.begin(B)
        ledger.abandon()
        ledger = restarted(ledger)
        ledger.count_crash(0.0)
    assert not ledger.refused
    assert not ledger.crashes


def test_a_finished_attempt_wipes_the_count_of_deaths() -> None:
    ledger = serving()
    ledger.begin(B)
    ledger.count_crash(0.0)
    finish(ledger, attempt(B, Outcome.POSTPONED))
    assert not ledger.crashes


def test_the_history_is_bounded_and_newest_first() -> None:
    ledger = serving()
    for number in range(KEPT_ATTEMPTS + 5):
        finish(ledger, attempt(Revision(str(number)), Outcome.SUPERSEDED))
    assert len(ledger.attempts) == KEPT_ATTEMPTS
    assert ledger.attempts[0].revision.id == str(KEPT_ATTEMPTS + 4)


def test_the_files_of_what_is_live_was_before_or_is_wanted_are_worth_keeping() -> None:
    ledger = Ledger()
    assert list_worth_keeping(ledger) == set()
    for number in range(1, 5):
        revision = Revision(f"sha-{number}")
        live = Generation(number, revision, f"fp-{number}", 0.0)
        ledger.went_live(live, f"/cache/sha-{number}")
    ledger.wanted = Revision("sha-9")
    assert list_worth_keeping(ledger) == {"sha-4", "sha-3", "sha-9"}
    after_restart = restarted(ledger)
    assert list_worth_keeping(after_restart) == {"sha-4", "sha-3"}


def place(ledger: Ledger, number: int) -> PastGeneration:
    found = ledger.past(number)
    assert found is not None
    return found


def missing(ledger: Ledger) -> Ledger:
    """The same, where generation 2 was live last and 1 answers in its place as 3."""
    ledger.went_live(generation(2, B), "/b")
    missed = place(ledger, 2)
    ledger.went_live(generation(3, A), "/a")
    ledger.missed = missed
    return ledger


def test_what_is_missed_is_what_is_due_until_something_else_is_wanted() -> None:
    ledger = missing(serving())
    assert ledger.due == B
    ledger.wish(A)  # all that the source has left
    assert (ledger.due, decide(ledger, 0.0)) == (B, Sleep(None, None))
    newer = Revision("c", "step_3")
    ledger.wish(newer)
    assert ledger.due == newer
    ledger.wish(B)  # it is back
    assert (ledger.due, decide(ledger, 0.0)) == (B, B)


def test_what_is_missed_is_what_a_start_brings_back_unless_it_was_refused() -> None:
    ledger = restarted(missing(serving()))
    assert ledger.start_target == place(ledger, 2)
    assert B.id in list_worth_keeping(ledger)
    ledger.refuse(B, Reason("corrupt", "words"), 0.0)
    assert ledger.start_target == ledger.last_good == place(ledger, 3)


def test_nothing_is_missed_any_more_once_other_weights_are_live_or_somebody_pins() -> None:
    by = By("pin", 0, 1, 1.0)
    ledger = missing(serving())
    ledger.went_live(generation(4, Revision(NOISY + "a")), "")
    assert ledger.missed is not None
    ledger.went_live(generation(5, B), "/b")
    assert ledger.missed is None
    ledger = missing(serving())
    ledger.damage = "state.json is damaged"
    take_back = ledger.set_pinned(True, by)
    assert (ledger.missed, ledger.damage, ledger.pinned_by) == (None, None, by)
    take_back()
    assert (ledger.missed, ledger.pinned_by) == (place(ledger, 2), None)
    assert ledger.damage == "state.json is damaged"
    ledger.set_pinned(False, by)
    assert (ledger.missed, ledger.damage) == (place(ledger, 2), None)


def test_weights_were_live_as_the_last_generation_of_that_name_with_those_very_weights() -> None:
    ledger = missing(serving())
    found = ledger.was_live_as(A, "fp-a")
    assert found is not None
    assert found.number == 3
    assert ledger.was_live_as(A, "fp-b") is None


ONE, TWO, THREE, FOUR = (Revision(f"r{n}", f"step_{n}") for n in "1234")
NEWEST_FIRST = ("r4", "r3", "r2", "r1")


def past(*events: tuple[str, Revision]) -> Ledger:
    """A ledger of what went live and what was refused, in turn."""
    ledger = Ledger()
    for at, (how, revision) in enumerate(events, 1):
        if how == "live":
            number = ledger.next_number
            ledger.went_live(Generation(number, revision, f"fp-{revision.id}", float(at)), "")
        else:
            ledger.refuse(revision, Reason(how, how), float(at))
    return ledger


@pytest.mark.parametrize("named", [NEWEST_FIRST, ()])
@pytest.mark.parametrize(
    ("events", "newer"),
    [
        ([("live", ONE)], []),
        ([("live", ONE), ("nan", TWO)], [TWO]),
        ([("live", ONE), ("nan", TWO), ("io", THREE)], [THREE, TWO]),
        ([("live", ONE), ("nan", TWO), ("live", THREE)], []),
        ([("live", ONE), ("nan", TWO), ("live", THREE), ("io", FOUR)], [FOUR]),
        ([("live", ONE), ("nan", TWO), ("live", THREE), ("rolled_back", THREE), ("live", ONE)], []),
        (
            [("live", ONE), ("live", TWO), ("rolled_back", TWO), ("live", ONE), ("nan", THREE)],
            [THREE],
        ),
        ([("live", ONE), ("live", TWO), ("bake", TWO), ("live", ONE)], [TWO]),
    ],
)
def test_what_is_newer_than_all_that_went_live_was_refused_in_a_row(
    events: list[tuple[str, Revision]], newer: list[Revision], named: tuple[str, ...]
) -> None:
    """Also where the source sees none of them any more: then the time says what is newer."""
    found = list_newer_refusals(past(*events), named)
    assert [each.revision for each in found] == newer


def test_an_older_one_changes_nothing_later_whether_it_is_refused_or_goes_live() -> None:
    ledger = past(("live", TWO), ("nan", ONE), ("io", THREE), ("live", ONE))
    assert [each.revision for each in list_newer_refusals(ledger, NEWEST_FIRST)] == [THREE]
    late = past(("live", ONE), ("nan", FOUR), ("io", THREE))
    assert [each.revision for each in list_newer_refusals(late, NEWEST_FIRST)] == [FOUR, THREE]
