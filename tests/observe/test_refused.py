"""All refusals are remembered; those of checkpoints that are gone are shown for a day."""

from hotreload.picture.status import SHOWN_SECONDS, refusals_shown
from hotreload.types import Revision
from tests.observe.things import NOON, STEP_7, STEP_8, refusal, rejected

LATER = NOON + SHOWN_SECONDS + 1


def nothing(id: str) -> bool:
    return False


def test_refusals_of_the_last_day_are_shown_the_newest_first() -> None:
    both = [refusal(STEP_7, NOON), refusal(STEP_8, NOON + 2)]
    assert refusals_shown(both, None, nothing, NOON + 3) == both[::-1]
    assert refusals_shown(both, None, nothing, LATER) == both[1:]
    assert refusals_shown(both, None, nothing, LATER + 2) == []


def test_an_older_one_is_shown_while_the_source_holds_it() -> None:
    assert refusals_shown([refusal()], None, lambda id: id == STEP_8.id, LATER) == [refusal()]


def test_an_older_one_of_the_last_attempt_is_shown() -> None:
    assert refusals_shown([refusal()], rejected(), nothing, LATER) == [refusal()]
    assert refusals_shown([refusal(Revision("9", "step-9"))], rejected(), nothing, LATER) == []
