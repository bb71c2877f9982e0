"""What only a probe finds is refused before anybody is answered by it, and no client sees any."""

from pathlib import Path

import pytest

from hotreload.events import AnswersWithheld
from hotreload.types import Outcome
from tests.engine.real import OVERFLOWS_ON, overflowing
from tests.integration.running import Running, one_daemon, one_daemon_marks, words
from tests.integration.streaming import ENGINE, Streaming, was_held

pytestmark = one_daemon_marks()

UNPROVEN = ("gibberish", "nan", "inf", "overflow")
PROBES = (
    "probe=[{prompt='Who serves?',contains='served'},"
    f"{{prompt='Who{OVERFLOWS_ON}serves?',contains='served'}}]"
)

running = one_daemon(ENGINE, PROBES, "checks.nonfinite=allow")


@pytest.mark.parametrize("damage", UNPROVEN)
async def test_bad_answers_are_given_to_nobody(running: Running, damage: str) -> None:
    async with Streaming(running, clients=4).on() as load:
        attempt = await running.attempted(damaged(running, damage))
    assert attempt.outcome is Outcome.REJECTED, attempt
    assert attempt.reason is not None
    assert attempt.reason.code == "probe"
    assert (attempt.rolled_back, attempt.pause_seconds) == (False, 0.0)
    assert load.failures == []
    assert load.wrong() == []
    assert {number for number, *_ in load.answers} == {1}
    assert not was_held(running)
    assert not [event for event in running.happened if isinstance(event, AnswersWithheld)]
    assert (await running.ask())["text"] == words(1)


def damaged(running: Running, damage: str) -> Path:
    """A checkpoint that passes the checks of its files."""
    number = 10 + UNPROVEN.index(damage)
    if damage != "overflow":
        return running.drop(number, damage)
    return overflowing(running.checkpoints / f"overflow_step_{number}", words(number))
