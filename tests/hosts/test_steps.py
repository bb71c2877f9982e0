"""The table of steps is the one place that names them, and what it says is there."""

import ast
from pathlib import Path

import pytest

from hotreload import failpoints
from hotreload.hosts import steps
from hotreload.hosts.steps import STEPS, AfterFailure, StepKind
from tests.fakes import unread
from tests.hosts.slice import NEW, running

HOSTS = Path(steps.__file__).parent
ELSEWHERE = sorted(set(HOSTS.rglob("*.py")) - {Path(steps.__file__)})


@pytest.mark.parametrize("module", ELSEWHERE, ids=lambda path: str(path.relative_to(HOSTS)))
def test_no_step_is_named_as_a_string_but_in_the_table(module: Path) -> None:
    words = {
        node.value for node in ast.walk(ast.parse(module.read_text())) if type(node) is ast.Constant
    }
    assert words & STEPS.keys() == set()


def test_every_step_is_in_the_table_under_its_own_name() -> None:
    made = [each for each in vars(steps).values() if isinstance(each, StepKind)]
    assert {kind.name: kind for kind in made} == STEPS
    assert len(made) == len(STEPS)


def test_its_failpoints_are_points_of_an_attempt() -> None:
    named = {point for kind in STEPS.values() for point in (kind.before, kind.after) if point}
    assert named <= failpoints.POINTS.keys()


def test_what_changes_which_weights_answer_loses_the_engine_once_it_is_done_in_vain() -> None:
    final = {kind for kind in STEPS.values() if kind.after_failure is AfterFailure.DROPPED_OR_LOST}
    assert final == {steps.FLIP, steps.EXCHANGE}


async def test_a_follower_passes_an_attempts_failpoints_around_what_it_does() -> None:
    async with running() as ranks:
        staged = await ranks.over.weights.stage(unread(NEW))
        await ranks.over.unseen.prove(staged)
        before = await ranks.over.switch.flip(staged)
        await ranks.over.send_live({"number": "2"})
        await ranks.over.switch.retire(before)
        await ranks.over.weights.release(await ranks.over.switch.exchange(before))
    overlapped = ["staged", "probing", "proven", "swapping", "flipped", "committed"]
    assert [each.passed for each in ranks.following] == [[*overlapped, "swapping", "swapped"]] * 2
