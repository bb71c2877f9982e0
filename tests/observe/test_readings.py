"""What metrics read of the ledger: the last failure, and when something new went live."""

from hotreload.attempts import Attempt
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.observe.readings import last_failure, new_at
from hotreload.types import NOISY, Outcome, Revision


def test_the_attempt_that_failed_last_is_found_behind_those_that_went_well() -> None:
    ends = (Outcome.LIVE, Outcome.SUPERSEDED, Outcome.POSTPONED, Outcome.REJECTED)
    ledger = Ledger()
    for outcome in reversed(ends):
        attempt = Attempt(Revision(outcome.value), outcome, None, {}, 0.0, 0.0)
        ledger.attempts.appendleft(attempt)
    failed = last_failure(ledger)
    assert failed is not None
    assert failed.outcome is Outcome.POSTPONED


def test_a_rollback_a_restart_and_noise_are_nothing_new() -> None:
    ledger = Ledger()
    lives = ("one", "two", "one", f"{NOISY}1-0.01-3-fp", "two")
    for at, revision in enumerate(lives, start=1):
        place = PastGeneration(at, Revision(revision), "fp", "", float(at))
        ledger.generations.append(place)
    assert new_at(ledger) == 2.0
