"""One frame of `hotreload top`, as a function of what the daemon said."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hotreload.attempts import Attempt, By, Refusal
from hotreload.cli.client.show import columns, cut, pad
from hotreload.cli.client.top import AWAY, GLANCE_SECONDS, TopScreen
from hotreload.cli.client.top_frame import frame, write_line
from hotreload.errors import TimedOut
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    ModeChosen,
    PhaseEntered,
    Progress,
    RevisionWanted,
)
from hotreload.features.compare.evidence import Behaviour, RightAnswers
from hotreload.json_fields import attempt_fields
from hotreload.types import (
    AnsweringGeneration,
    GateState,
    LoadFacts,
    Mode,
    Outcome,
    Phase,
    Reason,
    Revision,
)
from tests.evidence import judged
from tests.observe.test_status import BOOTED, OPEN, Pages, after
from tests.observe.things import NOON, STEP_8, Told, generation, rejected, went_live

LOADING = LoadFacts("own", "", 12, 18, 600, 12, 0.04, "layers.3.down_proj")
LATER = datetime.fromtimestamp(NOON, UTC) + timedelta(minutes=3)


def shown(
    *events: Event,
    attempts: tuple[Attempt, ...] = (),
    width: int = 80,
    height: int = 24,
    pages: Pages | None = None,
    **more: Any,
) -> list[str]:
    status = after(*events, pages=pages).snapshot() if events else None
    fields = [attempt_fields(attempt) for attempt in attempts]
    lines = frame(status, fields, width=width, height=height, now=LATER, **more)
    return [write_line(line, colour=False) for line in lines]


def test_the_mode_and_the_generations_that_fade_out_stand_below_the_first_line() -> None:
    three = [AnsweringGeneration(generation(number), requests) for number, requests in FADING]
    status = after(*BOOTED, ModeChosen(Mode.OVERLAP), answering=three).snapshot()
    lines = frame(status, (), width=80, height=24, now=LATER)
    _, _, second, third, fourth, *_ = (write_line(line, colour=False) for line in lines)
    assert second == "gate open, 5 inside, 6 held   fingerprint print-3   mode overlap"
    assert f"{third} {fourth}" == (
        "answering 12 requests by generation 9, 3 requests still by 8, 1 request still by 7"
    )
    alone = after(*BOOTED, answering=three[:1]).snapshot()
    assert not any("answering" in text for text in texts(alone)[1:])


FADING = ((9, 12), (8, 3), (7, 1))


def texts(status: dict[str, Any]) -> list[str]:
    lines = frame(status, (), width=80, height=24, now=LATER)
    return [write_line(line, colour=False) for line in lines]


def test_where_generations_overlap_no_attempt_is_expected_to_drain() -> None:
    under_way = (ModeChosen(Mode.OVERLAP), PhaseEntered(STEP_8, Phase.STAGING))
    names = next(line for line in shown(*BOOTED, *under_way) if "staging" in line)
    to_come = ["fetching", "validating", "probing", "comparing", "swapping"]
    assert names.split() == [">staging", *to_come]


def compared(agreement: float, number: int) -> Attempt:
    found = Behaviour(6, 96, agreement, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0)
    return judged(went_live(number), behaviour=found)


def test_the_last_comparison_has_a_row_with_the_agreement_of_those_before_it() -> None:
    ended = [compared(0.5, 5), went_live(4), compared(0.975, 3), compared(1.0, 2)]
    finished = AttemptFinished(ended[0], generation(5, STEP_8))
    lines = shown(*BOOTED, finished, attempts=tuple(ended), width=160)
    (row,) = (line for line in lines if "agree" in line)
    assert row == "compared step-8: answers agree 50%, 1.50 times as long; before it 98%, 100%"
    older = [line for line in shown(*BOOTED, attempts=(went_live(),)) if "compared" in line]
    assert older == []


NARROW = [(80, 24), (60, 24)]


@pytest.mark.parametrize("size", NARROW)
def test_on_a_narrow_terminal_what_is_wrong_is_told_whole_and_no_word_is_broken(
    size: tuple[int, int],
) -> None:
    width, height = size
    reason = Reason(
        "config_mismatch", "num_hidden_layers is 36 and the served model has 28 of them"
    )
    long = Revision("9" * 40, "global_step_1000/actor/huggingface")
    tried = replace(rejected(reason), revision=long)
    pages = Pages(refused={long.id: Refusal(long, reason, NOON)})
    events = (*BOOTED, RevisionWanted(long), AttemptFinished(tried, generation(3)))
    lines = shown(*events, attempts=(tried,), width=width, height=height, pages=pages)
    assert max(map(columns, lines)) <= width
    text = " ".join(lines)
    assert f"{long.label} is wanted and was refused (config_mismatch), 60.0 s ago: " in text
    assert text.count(reason.message) == 2  # what is wrong, and the last attempt
    wide = shown(*events, attempts=(tried,), width=1000, height=height, pages=pages)
    words = {word for line in lines for word in line.split() if "…" not in word}
    assert words <= {word for line in wide for word in line.split()}


def test_an_attempt_in_progress_shows_each_phase_and_marks_the_one_that_runs() -> None:
    now = [0.0]
    status = Told(clock=lambda: now[0])
    for event in BOOTED:
        status.observe(event)
    for phase, then in ((Phase.FETCHING, 2.0), (Phase.STAGING, 5.0)):
        status.observe(PhaseEntered(STEP_8, phase))
        now[0] = then
    lines = frame(status.snapshot(), [], width=80, height=24, now=LATER)
    text = [write_line(line, colour=False) for line in lines]
    assert text[1].startswith("reloading ")
    names = next(line for line in text if "fetching" in line)
    assert names.split() == [
        "fetching",
        ">staging",
        "validating",
        "draining",
        "swapping",
        "probing",
    ]
    assert text[text.index(names) + 1].split()[:4] == ["2.0", "s", "3.0", "s"]


def test_a_download_is_a_bar() -> None:
    down = (
        PhaseEntered(STEP_8, Phase.FETCHING),
        Progress(STEP_8, Phase.FETCHING, 5 * 10**6, 10**7),
    )
    bar = "[############            ]  50%  5.0 MB of 10.0 MB"
    assert any(line.startswith(bar) for line in shown(*BOOTED, *down))


def test_history_fills_what_is_left_of_the_screen_and_no_more() -> None:
    back = replace(went_live(5), by=By("rollback", 0, 77, NOON, "too many words"))
    attempts = (went_live(), rejected(rolled_back=True), back) * 20
    lines = shown(*BOOTED, attempts=attempts, width=120, height=24)
    assert len(lines) == 24
    assert lines[-1] == "q quits"
    head = next(line for line in lines if line.startswith("WHEN"))
    assert head.split() == ["WHEN", "CHECKPOINT", "OUTCOME", "GEN", "TOOK", "HELD", "REASON"]
    live, failed, went_back = lines[lines.index(head) + 1 : lines.index(head) + 4]
    assert live.split()[3:] == ["step-8", "live", "4", "1.8", "s", "40", "ms"]
    assert failed.split()[4] == "rejected"
    assert "rolled back" not in failed
    assert "rolled back" in went_back
    assert "rollback, root (p" in went_back
    narrow = next(line for line in shown(*BOOTED, attempts=attempts) if line.startswith("WHEN"))
    assert narrow.split() == ["WHEN", "CHECKPOINT", "OUTCOME", "REASON"]


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (20, 6), (10, 2), (200, 60)])
def test_a_frame_is_never_larger_than_the_screen(size: tuple[int, int]) -> None:
    width, height = size
    wide = Revision("7" * 40, "検査点" * 30)
    events = (GenerationLive(generation(3, wide)), OPEN, PhaseEntered(wide, Phase.STAGING))
    lines = shown(*events, attempts=(went_live(3, wide),) * 80, width=width, height=height)
    assert len(lines) <= height
    assert max(map(columns, lines)) <= width


def test_a_daemon_that_is_away_leaves_what_is_known_below_the_news() -> None:
    lines = shown(*BOOTED, fault=(AWAY, "cannot reach the daemon on /x"))
    assert lines[:2] == ["hotreload: not reachable, trying again", "cannot reach the daemon on /x"]
    assert lines[2].startswith("generation 3")
    only = shown(fault=(AWAY, "away"))
    assert only == ["hotreload: not reachable, trying again", "away", "q quits"]


class Asked:
    """A daemon that notes what it is asked, and how long it may take to answer."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []

    def get(self, path: str, timeout: float) -> Any:
        self.asked.append((path, timeout))
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_daemon_that_does_not_answer_is_soon_said_to_start_or_hang() -> None:
    """For as long as a look takes nothing is redrawn, and nobody can quit."""
    silent = Asked({"/status": TimedOut("no answer on /x within 1 s")})
    watch = TopScreen(silent)
    watch.look_again()
    assert silent.asked == [("/status", GLANCE_SECONDS)]
    assert GLANCE_SECONDS <= 1
    assert watch.lines(colour=False)[0] == "hotreload: the daemon starts or hangs; trying again"


def differed(number: int) -> Attempt:
    """One that went live, changed some leaves, and whose comparison takes two lines in words."""
    right = RightAnswers(40, 38, 39, 1, 2, 0.5, 0.05)
    found = Behaviour(6, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0)
    found = replace(found, mean_kl=0.01, noise_kl=0.001, same_top=0.9, right_answers=right)
    return judged(replace(went_live(number), loading=LOADING), behaviour=found)


def test_on_24_lines_of_80_columns_the_change_is_told_once_and_a_reason_to_its_end() -> None:
    why = "the answer 'the the the the the the the the' to 'Who serves?' repeats itself 9 times"
    tried = replace(rejected(Reason("probe", why)), loading=LOADING)
    past = (replace(tried, finished_at=NOON + 9), tried, differed(5), differed(4))
    ended = [AttemptFinished(each, generation(5, STEP_8)) for each in reversed(past)]
    live = GenerationLive(generation(5, STEP_8))
    lines = shown(*BOOTED, live, *ended, attempts=past, pages=Pages(history=past))
    assert (max(map(columns, lines)), len(lines)) <= (80, 24)
    assert [line for line in lines if "leaves changed" in line] == [
        "loaded by our own loader: 12 of 30 leaves changed, most: layers.3.down_proj by…",
        "12 of 30 leaves changed, most: layers.3.down_proj by 4 %",  # of the last attempt
    ]
    (compared,) = [line for line in lines if "answers agree" in line]
    assert compared.endswith("…; before it 50%")
    head = next(at for at, line in enumerate(lines) if line.startswith("WHEN"))
    newest, older, *below, live_row, _, _ = [line.strip() for line in lines[head + 1 :]]
    assert newest.split()[-2:] == [
        "rejected",
        "probe",
    ]  # all of it stands above, as the last attempt
    assert (older.split()[-1], " ".join(below)) == ("rejected", f"probe: {why}")
    assert live_row.split()[-1] == "live"


def test_what_would_drive_the_terminal_is_shown_as_what_it_is() -> None:
    evil = generation(3, Revision("7" * 40, "\x1b[31mstep\n"))
    text = "".join(shown(GenerationLive(evil), OPEN))
    assert "\x1b" not in text
    assert "\\x1b[31mstep\\n" in text


def test_colours_stand_beside_words_and_can_be_left_out() -> None:
    sealed = GateChanged(GateState.SEALED, 0, 0, "the engine died", "engine_lost")
    status = after(*BOOTED, sealed, AttemptFinished(rejected(), None)).snapshot()
    lines = frame(status, [], width=80, height=24, now=LATER)
    assert write_line(lines[0], colour=True).startswith("\033[31mno request is answered: lost")
    assert write_line(lines[0], colour=False).startswith("no request is answered: lost")
    assert status["last_attempt"]["outcome"] == Outcome.REJECTED.value


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("some longer words", 12, "some longer…"),
        ("some longer words", 10, "some…"),
        ("a longerword", 10, "a longerw…"),
        ("検査点", 6, "検査点"),
        ("検査点", 5, "検査…"),
        ("検査点", 4, "検…"),
        ("e\u0301tape", 5, "e\u0301tape"),
        ("x", 0, ""),
    ],
)
def test_text_is_cut_by_the_columns_it_takes(text: str, room: int, expected: str) -> None:
    assert cut(text, room) == expected
    assert columns(pad(text, room)) == room
