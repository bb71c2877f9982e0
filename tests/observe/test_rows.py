"""The rows of /status: made once, and shown in the same words by status, top and page."""

import pwd
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hotreload.attempts import By
from hotreload.cli.client.show import ago, for_here
from hotreload.cli.client.texts import status_text, words_of, words_of_judges
from hotreload.cli.client.top_frame import frame, write_line
from hotreload.core.ledger import Overrule
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    LiveDrifted,
    ModeChosen,
    PhaseEntered,
    Progress,
    RevisionWanted,
    SourceScanned,
    StateSaved,
    TroubleNews,
    Wait,
)
from hotreload.features.compare.evidence import (
    Behaviour,
    BothAnswers,
    RightAnswers,
    behaviour_fields,
    behaviour_text,
)
from hotreload.figures import size
from hotreload.json_fields import attempt_fields
from hotreload.picture.history import History
from hotreload.picture.picture import State
from hotreload.picture.rows import rows_of
from hotreload.picture.words import TONES
from hotreload.types import AnsweringGeneration, GateState, Mode, Outcome, Phase, Reason, Revision
from tests.evidence import WORD, judged
from tests.observe.test_status import BOOTED, Pages, after
from tests.observe.things import NOON, OWN, STEP_8, generation, refusal, rejected, went_live

LATER = datetime.fromtimestamp(NOON, UTC) + timedelta(minutes=3)
BY = By("reload", 0, 77, NOON, "evaluation")
ALL: tuple[Event, ...] = (
    *BOOTED,
    ModeChosen(Mode.DRAIN, "it decodes speculatively"),
    RevisionWanted(STEP_8),
    Wait("shard 2 of 4"),
    PhaseEntered(STEP_8, Phase.FETCHING),
    Progress(STEP_8, Phase.FETCHING, 5 * 10**6, 10**7),
    SourceScanned("rescan", "EIO"),
    LiveDrifted(generation(3), ("b",)),
    StateSaved("no space left"),
    TroubleNews("files_gone", "they are gone", "copy them back"),
)
HELD = Pages(
    pinned=True,
    pinned_by=replace(BY, verb="pin"),
    overruled=Overrule(STEP_8, STEP_8, BY),
    refused={STEP_8.id: refusal()},
    history=[replace(rejected(), loading=OWN, by=BY)],
)


def everything() -> dict[str, Any]:
    fading = [AnsweringGeneration(generation(4), 12), AnsweringGeneration(generation(3), 1)]
    return after(*ALL, pages=HELD, answering=fading).snapshot()


def rows(*events: Event, **how: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in after(*events, **how).snapshot()["rows"]}


def test_the_command_shows_every_row_in_the_words_of_the_daemon() -> None:
    status = everything()
    text = " ".join(status_text(status, LATER).split())
    assert len(status["rows"]) > 15
    for row in status["rows"]:
        assert " ".join(f"{for_here(row['words'], LATER)}".split()) in text, row["name"]


def test_command_and_top_make_no_words_of_their_own() -> None:
    status = everything()
    for row in status["rows"]:
        row["words"] = f"said of {row['name']}"
    text = " ".join(status_text(status, LATER).split())
    assert [r["name"] for r in status["rows"] if f"said of {r['name']}" not in text] == []
    lines = frame(status, (), width=300, height=60, now=LATER)
    shown = "\n".join(write_line(line, colour=False) for line in lines)
    for name in ("state", "revision", "gate", "fingerprint", "mode", "waiting for", "download"):
        assert f"said of {name}" in shown


@pytest.mark.parametrize(
    "name", ["state", "revision", "live since", "gate", "fingerprint", "mode", "answering"]
)
def test_top_shows_rows_in_the_same_words(name: str) -> None:
    status = everything()
    lines = frame(status, (), width=300, height=60, now=LATER)
    text = "\n".join(write_line(line, colour=False) for line in lines)
    row = next(row for row in status["rows"] if row["name"] == name)
    assert for_here(row["words"], LATER, ago) in text


def test_a_command_makes_the_rows_and_words_that_an_older_daemon_does_not_have() -> None:
    status = everything()
    older = {name: value for name, value in status.items() if name not in ("rows", "summary")}
    assert status_text(older, LATER) == status_text(status, LATER)
    assert rows_of(older) == status["rows"]
    (told,) = History([went_live()], word=WORD).snapshot()["attempts"]
    assert words_of(attempt_fields(went_live())) == told["told"]


def test_every_state_and_outcome_has_a_tone() -> None:
    assert {*State, *Outcome} <= TONES.keys()


@pytest.mark.parametrize(
    ("name", "tone"),
    [
        ("state", "wait"),
        ("trouble", "bad"),
        ("drifted", "bad"),
        ("not saved", "bad"),
        ("source", "wait"),
        ("answering", "wait"),
        ("last attempt", "bad"),
        ("gate", None),
    ],
)
def test_a_row_says_how_grave_it_is(name: str, tone: str | None) -> None:
    row = next(row for row in everything()["rows"] if row["name"] == name)
    assert row["tone"] == tone


def test_what_goes_on_has_the_share_that_is_done_and_what_is_cut_short_is_there_whole() -> None:
    row = next(row for row in everything()["rows"] if "share" in row)
    assert (row["name"], row["share"]) == ("download", 0.5)
    assert row["words"] == "5.0 MB of 10.0 MB, waiting for data"
    assert rows(*BOOTED)["revision"]["whole"] == "7" * 40


def test_the_source_is_named_and_since_when_it_does_not_answer() -> None:
    assert rows(*BOOTED)["source"]["words"] == "directory"
    seen = rows(*BOOTED, SourceScanned("start"), SourceScanned("rescan", "EIO"))["source"]
    assert seen["words"] == "directory, stale, last seen 2023-11-14T22:14:20.000Z: EIO"


def test_words_from_elsewhere_begin_no_line_and_drive_no_terminal() -> None:
    evil = "\x1b[31m9\nstate  serving"
    said = rows(*BOOTED, Wait(evil), AttemptFinished(rejected(Reason(evil, evil)), None))
    for name in ("waiting for", "last attempt"):
        assert "\x1b" not in said[name]["words"]
        assert "\nstate" not in said[name]["words"]


def test_moments_and_users_are_written_as_they_are_known_here() -> None:
    said = f"pin by uid 0 (pid 77), {'2023-11-14T22:13:20.000Z'}: uid 0 is not renamed"
    here = for_here(said, LATER)
    assert here.startswith(f"pin by {pwd.getpwuid(0).pw_name} (pid 77), 2023-11-1")
    assert here.endswith("(3 min ago): uid 0 is not renamed")
    assert for_here(said, LATER, ago) == (
        f"pin by {pwd.getpwuid(0).pw_name} (pid 77), 3 min ago: uid 0 is not renamed"
    )
    assert for_here("uid 4294967294 (pid 1)", LATER) == "uid 4294967294 (pid 1)"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_450, "99.5 kB"),
        (99_500, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (3 * 2**30, "3.2 GB"),
        (8e14, "800 TB"),
    ],
)
def test_a_size_is_written_in_thousands(count: float, words: str) -> None:
    assert size(count) == words


HOLDING = GateChanged(GateState.HOLDING, 2, 0)


@pytest.mark.parametrize(
    ("events", "doing"),
    [
        ((), "answers no request: booting: the engine is starting, for "),
        (BOOTED, "answers requests; nothing newer is wanted"),
        ((*BOOTED, Wait("shard 2")), "answers requests; waits: shard 2 (0 ms so far)"),
        (
            (*BOOTED, PhaseEntered(STEP_8, Phase.VALIDATING)),
            "answers requests; checking step-8 (888888888888)",
        ),
        (
            (*BOOTED, PhaseEntered(STEP_8, Phase.SWAPPING), HOLDING),
            "holds 6 requests while the weights are exchanged; swapping to step-8",
        ),
        ((*BOOTED, HOLDING), "holds 6 requests while the KV pool is cleaned; nothing newer"),
    ],
)
def test_the_summary_says_what_the_daemon_does(events: tuple[Event, ...], doing: str) -> None:
    said = after(*events).snapshot()["summary"]["doing"]
    assert said.startswith(doing)


def test_an_attempt_says_which_phases_are_still_to_come() -> None:
    begun = (*BOOTED, ModeChosen(Mode.OVERLAP), PhaseEntered(STEP_8, Phase.STAGING))
    attempt = after(*begun).snapshot()["attempt"]
    assert attempt["expected"] == ["fetching", "validating", "probing", "comparing", "swapping"]
    assert attempt["doing"] == "staging step-8 (888888888888)"
    boots = after(PhaseEntered(STEP_8, Phase.BUILDING)).snapshot()["attempt"]
    assert boots["expected"] == ["fetching", "validating", "staging", "warming", "probing"]


def test_how_many_answers_are_right_is_told_beside_what_that_can_mean() -> None:
    right = RightAnswers(50, 40, 45, 2, 7, 0.08984375, 0.12)
    found = Behaviour(*(56, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0), right_answers=right)
    fields = behaviour_fields(found)
    assert fields["right_answers"]["p_worse"] == 0.08984375
    words = "answers agree 50%, 1.50 times as long, 40 of 50 answers right (before 45; "
    changed = "7 worse, 2 better, p 0.09; "
    assert behaviour_text(fields) == f"{words}{changed}a loss of 12.0% could be seen)"
    fields["right_answers"]["smallest_drop"] = None
    assert behaviour_text(fields) == f"{words}{changed}no loss could be seen)"
    assert "right" not in behaviour_text(behaviour_fields(replace(found, right_answers=None)))
    silent = behaviour_fields(replace(found, tokens=0, mean_kl=None, length_ratio=None))
    words = (
        "something where there was nothing, no KL: the live answers hold nothing to be led along"
    )
    assert words in behaviour_text(silent)


WORST = tuple(
    BothAnswers(f"{at}?\x1b", "yes", "no" if at < 2 else "yes", "agreement: 0 of 1")
    for at in range(3)
)


def test_the_answers_that_differ_and_the_last_words_of_a_command_are_told() -> None:
    """All of what was refused, and one of what went live: a history has many attempts."""
    found = Behaviour(*(6, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0), worst=WORST)
    said = ("one", "two", "three\x1b", "four")
    live = judged(went_live(), behaviour=found, command_said=said, not_compared="cut short")
    fields = attempt_fields(live)
    first, second = (f"answers differ: '{at}?\\x1b': live 'yes', new 'no'" for at in (0, 1))
    others = ["comparison cut short", "the command said: two / three\\x1b / four"]
    lines = [line for each in words_of_judges(fields, at_length=True) for line in each.lines]
    assert lines == [first, second, *others]
    assert words_of(fields)["judged"] == [first, *others]
    refused = attempt_fields(replace(live, outcome=Outcome.REJECTED))
    assert words_of(refused)["judged"] == [first, second, *others]
    assert words_of(attempt_fields(went_live()))["judged"] == []


def test_an_attempt_in_the_history_has_its_words() -> None:
    back = replace(went_live(), by=replace(BY, verb="rollback"), loading=OWN)
    fields = attempt_fields(back) | {
        "replaced": {"generation": 3, "revision": Revision("c" * 40).id, "label": "step-9"}
    }
    assert words_of(fields) == {
        "outcome": "rolled back",
        "tone": "good",
        "took": "1.8 s",
        "held": "40 ms",
        "by": "rollback, uid 0 (pid 77)",
        "notes": [
            "evaluation",
            "from step-9 (cccccccccccc), generation 3",
            "12 of 30 leaves changed, most: layers.3.down_proj by 4 %",
        ],
        "behaviour": None,
        "judged": [],
    }
