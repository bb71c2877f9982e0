"""New weights are led along what clients were answered; limits may refuse them by that."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.attempts import Attempt
from hotreload.behaviour import Answered, Question
from hotreload.errors import AnswerNonfinite, BadRequest, EngineLost
from hotreload.events import event_fields
from hotreload.features.compare.comparison import FEWEST_HEARD
from hotreload.features.compare.replay import RequestRecorder
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.types import Outcome, Revision, Staged
from tests.fakes import FakeEngine
from tests.features.admissions import end_answer, listening
from tests.features.compare.test_comparison import (
    ALIKE,
    COMPARING,
    OTHER,
    Comparing,
    compared,
    world_of,
)
from tests.features.compare.test_request_recorder import ended, request

SAID = tuple(map(ord, "first"))
"""The answer that clients got by what was live."""
SECRET = 471_147_114_711_471_147
"""An id of a client's prompt; too long to stand in a time or in the number of a thread, too."""
PICKY = CompareLimits(min_heard_same_top=0.9)


def hearing_world(folder: Path, limits: CompareLimits = CompareLimits()) -> Comparing:  # noqa: B008
    rules = replace(COMPARING, replay=100, limits=limits)
    return world_of(folder, rules, recorder=RequestRecorder(rules))


def client_asks(world: Comparing, times: int, first: int = 0) -> None:
    for number in range(first, first + times):
        with listening(world.recorder, request({0: [SECRET, number]})) as callbacks:
            end_answer(callbacks, 0, ended(*SAID))


def all_of(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged, with its fields."""
    return str([vars(record) for record in caplog.records])


async def test_both_are_led_along_what_clients_were_answered(tmp_path: Path) -> None:
    world = hearing_world(tmp_path)
    async with world.running():
        client_asks(world, 20)
        alike, other = await compared(world, ALIKE), await compared(world, OTHER)
    assert alike.facts["behaviour"] is not None
    assert other.facts["behaviour"] is not None
    found = alike.facts["behaviour"]
    assert (found["heard"], found["heard_tokens"]) == (20, 20 * len(SAID))
    assert (found["heard_same_top"], found["heard_noise_kl"]) == (1, 0)
    assert other.facts["behaviour"]["heard_same_top"] == 0


async def test_the_history_the_events_and_the_disk_have_figures_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = hearing_world(tmp_path, PICKY)
    async with world.running():
        client_asks(world, 20)
        refused = await compared(world, OTHER)
    assert refused.outcome is Outcome.REJECTED
    events = [event_fields(each) for each in world.happened]
    for told in (world.on_disk.decode(), repr(world.ledger.attempts), str(events), all_of(caplog)):
        assert str(SECRET) not in told
    assert '"heard": 20' in world.on_disk.decode()


async def test_a_limit_on_what_was_heard_refuses_and_few_decide_nothing(tmp_path: Path) -> None:
    world = hearing_world(tmp_path, PICKY)
    async with world.running():
        client_asks(world, FEWEST_HEARD - 1)
        few = await compared(world, ALIKE)
        client_asks(world, 1, first=FEWEST_HEARD)
        bad = await compared(world, OTHER)
    assert few.outcome is Outcome.LIVE
    assert (bad.outcome, bad.reason and bad.reason.code) == (Outcome.REJECTED, "behaviour")
    assert bad.reason is not None
    assert bad.reason.findings[0] == "min_heard_same_top: 0 is under 0.9"


class Overheard(FakeEngine):
    """Says what it is asked along clients' answers, and breaks where a test says."""

    fault: Exception | None = None
    of_new: bool = False

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        is_heard = any(each.request for each in questions)
        if self.fault and is_heard and self.of_new == (staged.revision == OTHER):
            raise self.fault
        return await super().ask(staged, questions)


async def broken(
    folder: Path,
    fault: Exception,
    *,
    of_new: bool = False,
    limits: CompareLimits = CompareLimits(),  # noqa: B008
) -> Attempt:
    world = hearing_world(folder, limits)
    world.engine.__class__ = Overheard
    engine: Any = world.engine
    engine.fault, engine.of_new = fault, of_new
    async with world.running():
        client_asks(world, 20)
        return await compared(world, OTHER)


@pytest.mark.parametrize(
    "fault", [BadRequest(f"input_ids: {SECRET}"), AnswerNonfinite("no numbers"), RuntimeError()]
)
async def test_where_it_fails_the_report_is_as_without(
    tmp_path: Path, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await broken(tmp_path, fault)
    assert attempt.outcome is Outcome.LIVE
    assert attempt.facts["behaviour"] is not None
    assert (attempt.facts["behaviour"]["questions"], attempt.facts["behaviour"]["heard"]) == (6, 0)
    assert str(SECRET) not in all_of(caplog)


async def test_a_limit_that_could_not_be_kept_to_lets_nothing_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await broken(tmp_path, RuntimeError(f"of {SECRET}"), limits=PICKY)
    assert attempt.reason is not None
    assert (attempt.outcome, attempt.reason.code) == (Outcome.POSTPONED, "not_judged")
    said = "[compare.limits] 0 of 20 requests of clients were compared: RuntimeError"
    assert attempt.reason.message == said
    assert str(SECRET) not in all_of(caplog)


async def test_where_the_live_ones_make_no_numbers_of_them_they_decide_nothing(
    tmp_path: Path,
) -> None:
    attempt = await broken(tmp_path, AnswerNonfinite("no numbers"), limits=PICKY)
    assert attempt.outcome is Outcome.LIVE


@pytest.mark.parametrize("asked", [20, 12])
async def test_a_limit_for_which_time_is_up_lets_nothing_pass(tmp_path: Path, asked: int) -> None:
    """Where so few were heard that they decide nothing, time for them decides nothing either."""
    world = hearing_world(tmp_path, PICKY)
    world.engine.__class__ = Stuck
    world.compare = replace(world.compare, time=0.2)
    async with world.running():
        client_asks(world, asked)
        attempt = await compared(world, ALIKE)
    assert attempt.outcome is (Outcome.POSTPONED if asked == 20 else Outcome.LIVE)
    if asked == 20:
        assert attempt.reason is not None
        assert attempt.reason.message.endswith("were compared: [compare] time was up")


class Stuck(FakeEngine):
    """Comes to no end with what clients asked."""

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        if all(each.request for each in questions):
            await self.steps.released["never"].wait()
        return await super().ask(staged, questions)


async def test_new_weights_that_make_no_numbers_of_a_clients_request_are_refused(
    tmp_path: Path,
) -> None:
    attempt = await broken(tmp_path, AnswerNonfinite("no numbers"), limits=PICKY, of_new=True)
    assert (attempt.outcome, attempt.reason and attempt.reason.code) == (
        Outcome.REJECTED,
        "behaviour",
    )


async def test_a_lost_engine_is_lost(tmp_path: Path) -> None:
    with pytest.raises(EngineLost):
        await broken_until_lost(tmp_path)


async def broken_until_lost(folder: Path) -> None:
    world = hearing_world(folder, PICKY)
    world.engine.__class__ = Overheard
    engine: Any = world.engine
    engine.fault = EngineLost("a thread died")
    client_asks(world, 1)
    world.source.known[OTHER.label] = OTHER
    async with world.running():
        await (await world.operator.reload(OTHER.label))


async def test_when_time_is_up_what_was_heard_so_far_counts(tmp_path: Path) -> None:
    """Of what finds no time nothing is told, and the report stands."""
    world = hearing_world(tmp_path)
    world.engine.__class__ = Slow
    world.compare = replace(COMPARING, time=0.2)
    async with world.running():
        client_asks(world, 20)
        attempt = await compared(world, OTHER)
    assert attempt.facts["behaviour"] is not None
    assert (attempt.outcome, attempt.facts["behaviour"]["heard"]) == (Outcome.LIVE, 16)
    along = "both were led along 16 of 20 requests of clients"
    assert attempt.facts["not_compared"].endswith(f" s: {along}")


class Slow(FakeEngine):
    """Comes to no end with the second batch of what clients asked."""

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        if len(questions) == 4 and all(each.request for each in questions):
            await self.steps.released["never"].wait()
        return await super().ask(staged, questions)


async def test_while_a_checkpoint_is_staged_requests_are_mirrored(tmp_path: Path) -> None:
    recorder = RequestRecorder(CompareSettings(mirror=1.0))
    world = world_of(tmp_path, COMPARING, recorder=recorder)
    async with world.running():
        client_asks(world, 1)  # nothing waits yet
        stage = world.engine.stage

        async def staged_under_load(checkpoint: Any) -> Staged:
            client_asks(world, 5)
            return await stage(checkpoint)

        world.engine.stage = staged_under_load  # type: ignore[method-assign]
        attempt = await compared(world, Revision("firsts", "step_7"))
    assert attempt.facts["behaviour"] is not None
    assert attempt.facts["behaviour"]["heard"] == 5
