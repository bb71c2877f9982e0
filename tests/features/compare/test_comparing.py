"""New weights are compared with the live ones before they answer; limits may refuse them."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.behaviour.asked import NOTED, AnswerCheck, Answered, Led, Question, Text
from hotreload.behaviour.built_in import questions
from hotreload.core.judge import Case, Judge
from hotreload.errors import AnswerNonfinite, NotEnoughMemory
from hotreload.features.compare import comparing
from hotreload.features.compare import settings as compare_settings
from hotreload.features.compare.behaviour import Behaviour, RightAnswers
from hotreload.features.compare.comparing import breaches
from hotreload.features.compare.differences import BothRead, Pair, report_of
from hotreload.features.compare.evidence import BLANK, behaviour_text
from hotreload.features.compare.hearing import Hearing
from hotreload.features.compare.judge import CompareJudge
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.json_fields import attempt_fields
from hotreload.settings.kinds import NamedFile
from hotreload.types import Attempt, Outcome, Phase, Revision, Staged
from tests.core.overlapping import Overlapping
from tests.evidence import in_json
from tests.fakes import END, HANG, FakeEngine

ALIKE = Revision("firsts", "step_1")
"""Fakes say their ids: what was live says `first`."""
OTHER = Revision("quite another", "step_2")
COMPARING = CompareSettings(time=20.0)
STRICT = replace(COMPARING, limits=CompareLimits(min_agreement=0.5))


class Comparing(Overlapping):
    """A core whose new weights are compared with the live ones by rules that a test may change."""

    def __init__(
        self,
        folder: Path,
        compare: CompareSettings,
        *,
        hearing: Hearing | None = None,
        others: Sequence[Judge] = (),
        **more: Any,
    ) -> None:
        super().__init__(folder, judges=self._judges, blank=(BLANK,), **more)
        self.compare = compare
        self.hearing = hearing or Hearing()
        self.others = others
        for engine in self.engines:
            engine.cannot_compare = None

    def _judges(self) -> list[Judge]:
        return [CompareJudge(self.compare, 1.0, self.hearing), *self.others]


class TakesLong:
    """A judge that decides after the comparison, and asks nothing here."""

    takes_long = True

    def check_can_judge(self, engine: object) -> None:
        """It can judge on each."""

    def watching(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def judge(self, case: Case) -> None:
        """It refuses none."""


def file_of(*questions: Question) -> NamedFile:
    """An operator's file that was read."""
    return NamedFile(Path("prompts.jsonl"), questions)


def world_of(folder: Path, rules: CompareSettings, **more: Any) -> Comparing:
    return Comparing(folder, rules, **more)


async def reloaded(world: Overlapping, revision: Revision) -> Attempt:
    world.source.known[revision.label] = revision
    attempt: Attempt = await (await world.operator.reload(revision.label))
    return attempt


async def test_the_history_tells_how_it_differs_and_nothing_is_decided(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        alike, other = await reloaded(world, ALIKE), await reloaded(world, OTHER)
    assert (alike.outcome, other.outcome) == (Outcome.LIVE, Outcome.LIVE)
    assert alike.facts["behaviour"] is not None
    assert other.facts["behaviour"] is not None
    assert alike.facts["behaviour"]["agreement"] == pytest.approx(5 / 6)
    assert other.facts["behaviour"]["agreement"] == 0
    assert alike.facts["behaviour"]["mean_kl"] < other.facts["behaviour"]["mean_kl"]
    assert world.restarted_ledger().history[0].facts == in_json(other.facts)


async def test_what_differs_by_more_than_a_limit_is_refused_and_never_answers(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, STRICT)
    async with world.running():
        bad = await reloaded(world, OTHER)
        assert (bad.outcome, bad.generation) == (Outcome.REJECTED, None)
        assert bad.reason is not None
        assert bad.reason.code == "behaviour"
        assert bad.reason.message == "[compare.limits] min_agreement: 0 is under 0.5"
        assert bad.reason.findings[0].startswith("min_agreement")
        assert "live 'first', new 'quite another'" in bad.reason.findings[1]
        assert await world.ask() == "1: first clean"
        assert world.engine.sets_held == 1
        assert (await reloaded(world, ALIKE)).outcome is Outcome.LIVE
    assert world.ledger.refused.keys() == {"quite another"}


async def test_a_dry_run_tells_it_and_refuses_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path, STRICT)
    world.source.known[OTHER.label] = OTHER
    async with world.running():
        found = await (await world.operator.rehearse(OTHER.label))
    assert (found.outcome, found.facts["behaviour"]["agreement"]) == (Outcome.REJECTED, 0)
    assert not world.ledger.refused


async def test_a_rollback_from_files_is_not_barred_by_how_far_it_goes(tmp_path: Path) -> None:
    rules = replace(STRICT, limits=CompareLimits())
    world = world_of(tmp_path, rules)
    async with world.running():
        await reloaded(world, OTHER)
        await reloaded(world, Revision("and one more", "step_3"))
        world.compare = STRICT
        back = await (await world.operator.rollback(1))
    assert (back.outcome, back.facts["behaviour"]) == (Outcome.LIVE, None)


async def test_what_cannot_be_compared_goes_live_without_a_report_if_there_are_no_limits(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, COMPARING)
    world.engine.cannot_compare = "there is no room"
    async with world.running():
        attempt = await reloaded(world, OTHER)
        assert (attempt.outcome, attempt.facts["behaviour"]) == (Outcome.LIVE, None)
        world.compare = STRICT
        attempt = await reloaded(world, Revision("and one more", "step_3"))
        tried = await (await world.operator.rehearse("step_3"))
    assert (tried.outcome, tried.reason) == (attempt.outcome, attempt.reason)
    assert attempt.reason is not None
    assert (attempt.outcome, attempt.reason.code) == (Outcome.POSTPONED, "not_judged")
    assert attempt.reason.message == (
        "[compare] limits cannot judge new weights of this engine: there is no room"
    )
    assert Phase.STAGING not in attempt.phases


@pytest.mark.parametrize(
    "fault", [NotEnoughMemory("no room for the shadow"), RuntimeError("a fault of ours"), HANG]
)
async def test_without_limits_a_comparison_that_fails_fails_no_checkpoint(
    tmp_path: Path, fault: object
) -> None:
    quick = replace(COMPARING, time=0.01)
    world = world_of(tmp_path, quick)
    world.steps.faults["compare"] = fault
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.facts["behaviour"]) == (Outcome.LIVE, None)


ASKED = (
    "the live weights had not answered yet",
    "the live weights had answered, and were being asked again",
    "the live weights had answered, the new ones not yet",
)


@pytest.mark.parametrize("turn", range(3))
async def test_where_nothing_decides_it_is_cut_short_and_the_history_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    monkeypatch.setattr(compare_settings, "UNDECIDING_SECONDS", 0.05)
    world = world_of(tmp_path, COMPARING)
    answers = world.engine.answer_unseen
    asked = list[int]()

    async def stuck(staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        asked.append(len(questions))
        await world.steps.released["never" if len(asked) > turn else "at once"].wait()
        return await answers(staged, questions)

    world.engine.answer_unseen = stuck  # type: ignore[method-assign]
    world.steps.released["at once"].set()
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.facts["behaviour"]) == (Outcome.LIVE, None)
    assert attempt.facts["not_compared"] == f"cut short after 0.05 s: {ASKED[turn]}"
    assert attempt_fields(attempt)["not_compared"] == attempt.facts["not_compared"]
    assert world.restarted_ledger().history[0].facts == attempt.facts


@pytest.mark.parametrize(
    ("limits", "others"),
    [(CompareLimits(min_agreement=0.0), []), (CompareLimits(), [TakesLong()])],
)
async def test_where_limits_or_another_judge_that_takes_long_decide_it_has_all_its_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: CompareLimits,
    others: Sequence[Judge],
) -> None:
    monkeypatch.setattr(compare_settings, "UNDECIDING_SECONDS", 0.0)
    world = world_of(tmp_path, replace(COMPARING, limits=limits), others=others)
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.facts["behaviour"] is not None
    assert (attempt.outcome, attempt.facts["not_compared"]) == (Outcome.LIVE, None)


async def test_a_dry_run_compares_as_long_as_ever_for_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_settings, "UNDECIDING_SECONDS", 0.0)
    world = world_of(tmp_path, COMPARING)
    world.source.known[OTHER.label] = OTHER
    async with world.running():
        found = await (await world.operator.rehearse(OTHER.label))
        live = await reloaded(world, OTHER)
    assert (found.facts["behaviour"]["agreement"], found.facts["not_compared"]) == (0, None)
    assert live.facts["not_compared"].startswith("cut short after 0 s: ")


@pytest.mark.parametrize("fault", [NotEnoughMemory("no room for the shadow"), HANG])
async def test_with_limits_it_is_tried_again_later(tmp_path: Path, fault: object) -> None:
    world = world_of(tmp_path, replace(STRICT, time=0.01))
    world.steps.faults["compare"] = fault
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.facts["not_compared"]) == (Outcome.POSTPONED, None)
    assert not world.ledger.refused


async def test_weights_that_make_no_numbers_of_a_question_are_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        attempt = await reloaded(world, Revision("x", "step_4_overflow"))
        assert attempt.reason is not None
        assert (attempt.outcome, attempt.reason.code) == (Outcome.REJECTED, "behaviour")
        assert await world.ask() == "1: first clean"


async def test_where_the_live_ones_make_none_there_is_nothing_to_compare_with(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path, STRICT)
    world.engine.live.weights.overflows = True
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.facts["behaviour"]) == (Outcome.LIVE, None)


class NumbersOfTexts(FakeEngine):
    """Makes none of any question."""

    async def answer_unseen(
        self, staged: Staged, questions: Sequence[Question]
    ) -> Sequence[Answered]:
        if not all(isinstance(each, Led | Text) for each in questions):
            raise AnswerNonfinite("no numbers")
        return await super().answer_unseen(staged, questions)


async def test_nor_where_they_make_none_of_any_question(tmp_path: Path) -> None:
    """Figures of no question are none: a limit on them would refuse everything for ever."""
    world = world_of(tmp_path, STRICT)
    world.engine.__class__ = NumbersOfTexts
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert (attempt.outcome, attempt.facts["behaviour"]) == (Outcome.LIVE, None)


async def test_a_question_that_the_live_ones_make_none_of_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of a corpus must not switch all limits off."""
    corpus = [Question(f"{n}", 4, place=f"prompts.jsonl: line {n}") for n in range(1, 5)]
    corpus[2] = replace(corpus[2], prompt="this one makes them overflow")
    world = world_of(tmp_path, replace(STRICT, corpus=file_of(*corpus)))
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.facts["behaviour"] is not None
    assert attempt.facts["behaviour"]["questions"] == len(questions()) + 3
    assert (attempt.outcome, attempt.reason and attempt.reason.code) == ("rejected", "behaviour")
    (told,) = (each for each in caplog.records if each.message == "behaviour.live_nonfinite")
    assert vars(told)["why"] == "prompts.jsonl: line 3: no numbers"


async def test_of_several_engines_the_first_compares_for_all(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING, engines=2)
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.facts["behaviour"] is not None
    assert world.steps.entered["compare"].is_set()
    assert not world.engines[1].steps.entered["compare"].is_set()


def expecting(prompt: str, contains: str) -> Question:
    return Question(prompt, 40, check=AnswerCheck("contains", contains))


CORPUS = (*(expecting(f"Who is {at}?", "first") for at in range(6)), expecting("Else?", "quite"))
"""Six that what is live answers right, and one that another does."""
RIGHT = RightAnswers(7, 1, 6, 1, 6, 8 / 128, None, ())


def told_of(right: RightAnswers) -> Any:
    """Its facts, but for the answers that were lost."""
    return {name: value and round(value, 9) for name, value in asdict(right).items()}


async def test_the_operators_questions_are_asked_too_and_their_answers_judged(
    tmp_path: Path,
) -> None:
    long = Question("A text?", 40)
    world = world_of(tmp_path, replace(COMPARING, corpus=file_of(*CORPUS, long)))
    async with world.running():
        alike, other = await reloaded(world, ALIKE), await reloaded(world, OTHER)
    assert alike.facts["behaviour"] is not None
    assert other.facts["behaviour"] is not None
    assert other.facts["behaviour"]["questions"] == alike.facts["behaviour"]["questions"] == 14
    right = RightAnswers(7, 6, 6, 0, 0, 1.0, 5 / 7)
    assert alike.facts["behaviour"]["right_answers"] == told_of(right)
    found = other.facts["behaviour"]["right_answers"]
    assert found is not None
    assert {**found, "lost": ()} == told_of(RIGHT)
    assert world.restarted_ledger().history[0].facts == in_json(other.facts)


async def test_a_report_is_made_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a thousand questions it takes most of a second."""
    made_on = list[threading.Thread]()

    def report(pairs: Sequence[Pair], read: Sequence[BothRead]) -> Behaviour:
        made_on.append(threading.current_thread())
        return report_of(pairs, read)

    monkeypatch.setattr(comparing, "report_of", report)
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        assert (await reloaded(world, OTHER)).facts["behaviour"] is not None
    assert made_on
    assert threading.main_thread() not in made_on


async def test_too_few_right_answers_are_refused_with_those_that_got_worse(tmp_path: Path) -> None:
    rules = replace(COMPARING, corpus=file_of(*CORPUS), limits=CompareLimits(min_accuracy=0.8))
    world = world_of(tmp_path, rules)
    async with world.running():
        good, bad = await reloaded(world, ALIKE), await reloaded(world, OTHER)
    assert good.outcome is Outcome.LIVE
    assert (bad.outcome, bad.generation) == (Outcome.REJECTED, None)
    assert bad.reason is not None
    assert bad.reason.findings[0].startswith(
        "min_accuracy: 0.143 (the live weights' 0.857; 6 worse"
    )
    assert bad.reason.findings[1].startswith("'Who is 0?': contains 'first'; live 'firsts', new")


async def test_a_long_answer_is_followed_along_its_beginning_alone(tmp_path: Path) -> None:
    world = world_of(tmp_path, replace(COMPARING, corpus=file_of(Question("Go on", 200))))
    asked = world.engine.asked_unseen
    async with world.running():
        await reloaded(world, Revision("long " * 30, "step_1"))
        asked.clear()
        await reloaded(world, OTHER)
    assert max(len(each.answer) for each in asked if isinstance(each, Led)) == NOTED - 1


async def test_the_end_of_an_answer_is_part_of_what_is_expected(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    async with world.running():
        alike = await reloaded(world, ALIKE)
    led = {each.answer for each in world.engine.asked_unseen if isinstance(each, Led)}
    assert led == {(*map(ord, "first"), END)}
    assert alike.facts["behaviour"] is not None
    assert alike.facts["behaviour"]["mean_kl"] is not None
    assert alike.facts["behaviour"]["mean_kl"] > 0  # it goes on where the live ones end
    assert alike.facts["behaviour"]["noise_kl"] == 0


async def test_an_answer_that_is_over_at_once_is_led_along_to_its_end(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    world.engine.live.weights.says = ""
    async with world.running():
        attempt = await reloaded(world, OTHER)
    assert attempt.facts["behaviour"] is not None
    found = attempt.facts["behaviour"]
    assert (found["live_empty"], found["tokens"]) == (6, 0)
    assert found["mean_kl"] is not None


FOUND = Behaviour(
    *(6, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0),
    mean_kl=0.25,
    noise_kl=0.0,
    perplexity_ratio=1.25,
    right_answers=RightAnswers(50, 40, 45, 2, 7, 0.08984375, 0.12),
)


def limits() -> Iterator[tuple[dict[str, float], str]]:
    yield {"min_agreement": 0.6}, "min_agreement: 0.5 is under 0.6"
    yield {"max_kl": 0.2}, "max_kl: 0.25 is over 0.2"
    yield {"max_kl_over_noise": 1000.0}, "max_kl_over_noise: 2.5e+05 is over 1000"
    yield {"max_perplexity_ratio": 1.2}, "max_perplexity_ratio: 1.25 is over 1.2"
    yield {"max_length_ratio": 1.4}, "max_length_ratio: 1.5 is over 1.4"
    yield (
        {"min_accuracy": 0.85},
        "min_accuracy: 0.8 (the live weights' 0.9; 7 worse, 2 better, p 0.09; a loss of 0.12 could "
        "be seen) is under 0.85",
    )
    yield {"min_change": 0.3}, "min_change: 0.25 is under 0.3"


@pytest.mark.parametrize(("limit", "words"), list(limits()))
def test_each_limit_says_what_is_beyond_it(limit: dict[str, float], words: str) -> None:
    assert [*breaches(FOUND, CompareLimits(**limit))] == [words]


def test_what_is_within_is_allowed_and_shorter_is_as_bad_as_longer() -> None:
    wide = CompareLimits(0.5, 0.25, 3e5, 1.25, 1.5, 0.8, 0.25)
    assert [*breaches(FOUND, wide)] == []
    shorter = replace(FOUND, length_ratio=0.5)
    assert [*breaches(shorter, wide)] == ["max_length_ratio: 2 is over 1.5"]


def test_of_silent_live_weights_what_could_not_be_measured_breaks_no_limit() -> None:
    """Else no checkpoint would ever be better than they are."""
    every = CompareLimits(0.5, 0.25, 3e5, 1.25, 1.5, 0.8, 0.25)
    silent = replace(FOUND, tokens=0, live_empty=6, mean_kl=None, noise_kl=None, length_ratio=1.0)
    assert [*breaches(silent, every)] == []
    talks = replace(silent, agreement=0.0, length_ratio=None)
    assert [*breaches(talks, every)] == [
        "max_length_ratio: inf is over 1.5",
        "min_agreement: 0 is under 0.5",
    ]


async def test_a_checkpoint_beside_silent_live_weights_is_told_of_in_json(tmp_path: Path) -> None:
    world = world_of(tmp_path, COMPARING)
    world.engine.live.weights.says = ""
    async with world.running():
        attempt = await reloaded(world, OTHER)
    kept = world.restarted_ledger().history[0]
    assert kept.facts == in_json(attempt.facts)
    fields = json.loads(json.dumps(attempt_fields(kept), allow_nan=False))
    assert fields["behaviour"]["length_ratio"] is None
    assert "something where there was nothing" in behaviour_text(fields["behaviour"])


def test_what_was_not_measured_keeps_to_no_limit() -> None:
    bare = replace(FOUND, mean_kl=None, right_answers=None)
    assert [*breaches(bare, CompareLimits(max_kl=1.0, min_accuracy=0.0))] == [
        "max_kl: what was not measured is over 1",
        "min_accuracy: what was not measured is under 0",
    ]
