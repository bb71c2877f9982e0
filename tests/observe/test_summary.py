"""How things are in one sentence, as status, `top` and the page begin with it."""

from dataclasses import replace
from typing import Any

import pytest

from hotreload.attempts import By, PassedOver
from hotreload.core.ledger import Overrule
from hotreload.events import (
    AttemptFinished,
    Event,
    FoldersPassedOver,
    GenerationLive,
    LiveDrifted,
    LoaderDistrusted,
    PhaseEntered,
    RevisionWanted,
    SourceScanned,
    StateSaved,
    TroubleNews,
    Wait,
)
from hotreload.picture.picture import Rank, ReplicaFigures
from hotreload.troubles import FILES_GONE, SOCKET_GONE, WAITS_FOR_FILES
from hotreload.types import NOISY, Outcome, Phase, Reason, Revision
from tests.observe.test_replicas import BOTH, lost
from tests.observe.test_status import BOOTED, Pages, after, sealed
from tests.observe.things import NOON, STEP_7, STEP_8, ended, generation, refusal, rejected

ANSWERS = "generation 3, step-7, answers"
WELL = f"{ANSWERS}; that is what is wanted"
IS_LIVE = (*BOOTED, RevisionWanted(STEP_7))
WANTED = (*BOOTED, RevisionWanted(STEP_8))
REFUSED = Pages(refused={STEP_8.id: refusal()})
STEP_9 = Revision("9" * 40, "step-9")
NOISE = Revision(f"{NOISY}1", "step-7 + noise")
GONE = TroubleNews(FILES_GONE, "the files of generation 3 are gone", "copy them back")
NO_SOCKET = TroubleNews(SOCKET_GONE, "the socket is gone", "look at its folder")


def summary(*events: Event, pages: Pages | None = None, rank: Rank | None = None) -> dict[str, Any]:
    said: dict[str, Any] = after(*events, pages=pages, rank=rank).snapshot()["summary"]
    return said


@pytest.mark.parametrize(
    ("events", "pages", "words", "tone", "then"),
    [
        (IS_LIVE, Pages(), WELL, "good", None),
        (BOOTED, Pages(), f"{ANSWERS}; nothing else is wanted", "good", None),
        (WANTED, Pages(), f"{ANSWERS}; step-8 is wanted and not live yet", "wait", None),
        (
            (*WANTED, PhaseEntered(STEP_8, Phase.STAGING)),
            REFUSED,  # it is tried anew, by force
            f"{ANSWERS}; step-8 is wanted and on its way (staging, for 0 ms)",
            "wait",
            None,
        ),
        (
            WANTED,
            Pages(pinned=True),
            f"{ANSWERS}; step-8 is wanted, but a pin holds this one",
            "wait",
            "hotreload unpin",
        ),
        (
            (*WANTED, AttemptFinished(rejected(), generation(3))),
            REFUSED,
            f"{ANSWERS}; step-8 is wanted and was refused (truncated), 60.0 s ago",
            "bad",
            "hotreload explain truncated",
        ),
        (
            WANTED,  # refused long ago, and wanted again
            REFUSED,
            f"{ANSWERS}; step-8 is wanted and was refused (truncated), 60.0 s ago",
            "bad",
            "hotreload explain truncated",
        ),
        (
            (*WANTED, AttemptFinished(ended(Outcome.POSTPONED), generation(3))),
            Pages(),
            f"{ANSWERS}; step-8 is wanted and was put off (drain)",
            "wait",
            "hotreload explain drain",
        ),
        (
            IS_LIVE,
            Pages(overruled=Overrule(STEP_7, STEP_8, By("rollback", 0, 7, NOON))),
            f"{ANSWERS}; that is what an operator chose over the source's step-8",
            "good",
            None,
        ),
        (
            IS_LIVE,
            REFUSED,
            f"{ANSWERS}; step-8 is newer and was refused (truncated), 60.0 s ago",
            "bad",
            "hotreload explain truncated",
        ),
        (
            IS_LIVE,
            Pages({"8": refusal(STEP_8, NOON + 1), "9": refusal(STEP_9, NOON + 30)}),
            f"{ANSWERS}; step-9 is newer and was refused (truncated): 2 in a row, the first "
            "59.0 s ago",
            "bad",
            "hotreload explain truncated",
        ),
        (
            IS_LIVE,
            Pages(
                {"9": refusal(STEP_9, NOON + 30)},
                pinned=True,
                pinned_by=By("rollback", 0, 7, NOON),
            ),
            f"{ANSWERS}; a rollback holds it, and the source is not followed; step-9 is newer and "
            "was refused (truncated), 30.0 s ago",
            "bad",
            "hotreload explain truncated",
        ),
        (
            (*IS_LIVE, Wait("step-8: no model.safetensors")),
            Pages(),
            f"{WELL}; it waits: step-8: no model.safetensors (0 ms so far)",
            "wait",
            None,
        ),
        (
            (
                *IS_LIVE,
                FoldersPassedOver((PassedOver("x", Reason("no_marker", "x")),), {"no_marker": 1}),
            ),
            Pages(),
            f"{ANSWERS}; x is newer and is passed over (no_marker); 1 trouble: SourcePassedOver",
            "wait",
            "hotreload explain SourcePassedOver",
        ),
        (
            (
                *BOOTED[1:],
                GenerationLive(replace(generation(3), revision=NOISE)),
                RevisionWanted(NOISE),
            ),
            Pages(),
            "generation 3, step-7 + noise, answers; an operator put that noise on; 1 trouble: "
            "NoiseAnswers",
            "bad",
            "hotreload explain NoiseAnswers",
        ),
        (
            IS_LIVE,
            Pages(pinned=True, pinned_by=By("rollback", 0, 7, NOON)),
            f"{ANSWERS}; a rollback holds it, and the source is not followed",
            "good",
            "hotreload unpin",
        ),
        (
            WANTED,
            Pages(pinned=True, pinned_by=By("rollback", 0, 7, NOON)),
            f"{ANSWERS}; step-8 is wanted, but a rollback holds this one",
            "wait",
            "hotreload unpin",
        ),
        (
            (*IS_LIVE, GONE),
            Pages(),
            f"{WELL}; 1 trouble: files_gone",
            "bad",
            "hotreload explain files_gone",
        ),
        (
            (*IS_LIVE, GONE, NO_SOCKET, StateSaved("full")),
            Pages(),
            f"{WELL}; 3 troubles: files_gone, socket_gone, StateNotSaved",
            "bad",
            "hotreload status --check",
        ),
        (
            (*WANTED, AttemptFinished(rejected(), generation(3)), GONE),
            REFUSED,
            f"{ANSWERS}; step-8 is wanted and was refused (truncated), 60.0 s ago; "
            "1 trouble: files_gone",
            "bad",
            "hotreload status --check",
        ),
        (
            (*BOOTED, sealed("SIGTERM")),
            Pages(),
            "no request is answered: stopping: SIGTERM",
            "wait",
            None,
        ),
        (
            (*BOOTED, sealed("the scheduler thread died", "engine_lost")),
            Pages(),
            "no request is answered: lost: the scheduler thread died",
            "bad",
            "hotreload explain EngineLost",
        ),
    ],
)
def test_one_sentence_says_who_answers_whether_that_is_wanted_and_what_to_do(
    events: tuple[Event, ...], pages: Pages, words: str, tone: str, then: str | None
) -> None:
    said = summary(*events, pages=pages)
    assert (said["words"], said["tone"], said["next"]) == (words, tone, then)


def test_a_start_says_which_step_it_is_at_and_for_how_long() -> None:
    said = summary(PhaseEntered(STEP_7, Phase.WARMING))
    doing = (
        "no request is answered: booting: compiling for the first requests of step-7 (777777777777)"
    )
    assert said["words"].startswith(f"{doing}, for ")
    assert (said["tone"], said["next"]) == ("wait", "hotreload status --wait")
    waits = summary(TroubleNews(WAITS_FOR_FILES, "all is gone", "mount it"))
    assert (waits["tone"], waits["next"]) == ("bad", "hotreload explain waits_for_files")


def test_a_rank_that_follows_wishes_nothing_and_misses_no_source() -> None:
    said = summary(*WANTED, SourceScanned("rescan", "away"), rank=Rank(1, 2, "tpu-0:8000"))
    assert said["words"] == "holds generation 3, step-7; rank 0 answers"
    assert (said["tone"], said["findings"]) == ("good", [])


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        (GONE, "files_gone", "the files of generation 3 are gone"),
        (LiveDrifted(generation(3), ("a",)), "LiveWeightsDrifted", "no longer what went live"),
        (StateSaved("disk full"), "StateNotSaved", "disk full"),
        (LoaderDistrusted("leaf b differs"), "LoaderDistrusted", "switched off: leaf b differs"),
        (SourceScanned("rescan", "EIO"), "SourceDead", "does not answer: EIO"),
        (
            FoldersPassedOver((PassedOver("x", Reason("format", "x holds a.bin")),), {"format": 3}),
            "SourcePassedOver",
            "x holds a.bin; and 2 more",
        ),
        (
            GenerationLive(replace(generation(3), revision=NOISE)),
            "NoiseAnswers",
            "noise",
        ),
    ],
)
def test_what_is_wrong_is_a_finding_with_a_code_that_can_be_explained(
    event: Event, code: str, words: str
) -> None:
    found = summary(*BOOTED, event)["findings"]
    assert [each["code"] for each in found] == [code]
    assert words in found[0]["words"]
    assert found[0]["next"] == f"hotreload explain {code}"


def test_an_engine_that_is_lost_beside_others_is_a_finding() -> None:
    status = after(*BOTH, *lost(1), others=[ReplicaFigures()]).snapshot()
    (found,) = status["summary"]["findings"]
    assert found["code"] == "ReplicaLost"
    assert found["words"] == "replica 1 is lost: the scheduler thread died"
