"""The JSON spelling of attempts and events, and the history."""

import json
import logging
import re
from dataclasses import replace

import pytest

from hotreload.attempts import By, PassedOver
from hotreload.events import (
    AnswersWithheld,
    AttemptFinished,
    DryRunFinished,
    Event,
    FoldersPassedOver,
    GateChanged,
    GenerationEnded,
    GenerationLive,
    GenerationNamed,
    LastLifeDied,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ModeChosen,
    OperatorAsked,
    PhaseEntered,
    Progress,
    ReplicaMoved,
    RevisionWanted,
    SettingsRead,
    SocketBoundAnew,
    SourceScanned,
    StateSaved,
    StopRequested,
    TroubleNews,
    Wait,
    Warmup,
    WorkerMoved,
    event_fields,
)
from hotreload.features.bake.evidence import Bake, BakeChanged, BakeOutcome, SignalCount
from hotreload.features.command.command import CommandBegan
from hotreload.features.departure.departure import DepartureBegan, DepartureOver
from hotreload.features.pause.pause import PauseBegan, PauseOver
from hotreload.json_fields import NOT_LOADED, attempt_fields, iso
from hotreload.picture.history import History
from hotreload.types import GateState, Mode, Outcome, Phase, Reason, ReplicaState
from tests.event_kinds import KINDS
from tests.evidence import WORD
from tests.observe.things import NOON, STEP_7, STEP_8, ended, generation, rejected, went_live

PIN, UNPIN = (By(verb, 1000, 77, NOON, "evaluation") for verb in ("pin", "unpin"))
PIN_FIELDS = {
    "verb": "pin",
    "uid": 1000,
    "pid": 77,
    "at": "2023-11-14T22:13:20.000Z",
    "reason": "evaluation",
}

EVENTS: list[tuple[Event, str]] = [
    (RevisionWanted(STEP_7), "revision.wanted"),
    (Wait("shard 2 of 4"), "source.waiting"),
    (PhaseEntered(STEP_7, Phase.STAGING), "reload.phase"),
    (PhaseEntered(STEP_7, None), "reload.phase"),
    (CommandBegan(STEP_7, "judge.sh", 60.0), "reload.command"),
    (Progress(STEP_7, Phase.FETCHING, 2, 3), "reload.progress"),
    (AttemptFinished(went_live(), generation()), "reload.live"),
    (AttemptFinished(rejected(), None), "reload.rejected"),
    *((AttemptFinished(ended(outcome), None), f"reload.{outcome.value}") for outcome in Outcome),
    (DryRunFinished(replace(rejected(), dry_run=True), generation()), "reload.dry_run"),
    (GenerationLive(generation()), "generation.live"),
    (GenerationNamed(generation()), "generation.named"),
    (GenerationEnded(generation()), "generation.ended"),
    (ModeChosen(Mode.DRAIN, "speculative decoding"), "reload.mode"),
    (Warmup(0, 3, 8), "engine.warming"),
    *((ReplicaMoved(1, state, "why", 2.0), f"replica.{state.value}") for state in ReplicaState),
    *((GateChanged(state, 1, 2), f"gate.{state.value}") for state in GateState),
    (SourceScanned("rescan"), "source.scanned"),
    (OperatorAsked(PIN), "operator.pin"),
    (OperatorAsked(By("rollback", 0, 1, NOON), "7", "not remembered"), "operator.rollback"),
    (DepartureBegan("preempted", 25.0), "departure.began"),
    (DepartureOver("preempted"), "departure.over"),
    (PauseBegan(PIN, "abort", "abort", 600.0), "pause.began"),
    (PauseOver(None, 2), "pause.over"),
    (StateSaved("read-only"), "state.not_saved"),
    (StateSaved(), "state.saved"),
    (SettingsRead(("[reload] sets",), ("[server] tcp",)), "settings.read"),
    (SettingsRead(error="is not TOML"), "settings.not_read"),
    (TroubleNews("files_gone", "they are gone", "copy them back"), "trouble.began"),
    (TroubleNews("files_gone", None), "trouble.over"),
    (SocketBoundAnew("/run/s"), "socket.bound_anew"),
    (LastLifeDied("it was killed by signal 9", with_machine=False), "daemon.last_life_died"),
    (StopRequested(), "daemon.stopping"),
    (
        FoldersPassedOver((PassedOver("step_9", Reason("io", "why")),), {"io": 1}),
        "source.passed_over",
    ),
    (AnswersWithheld(generation(), 24), "answers.withheld"),
    (BakeChanged(7, STEP_7, Bake(BakeOutcome.BAKING, NOON, NOON + 300)), "bake.began"),
    *(
        (BakeChanged(7, STEP_7, Bake(outcome, NOON, NOON + 300)), f"bake.{outcome.value}")
        for outcome in BakeOutcome
        if outcome is not BakeOutcome.BAKING
    ),
    (LoaderDistrusted("leaf b differs"), "loader.distrusted"),
    (LiveVerified(generation()), "live.verified"),
    (LiveDrifted(generation(), ("b",)), "live.drifted"),
    (WorkerMoved(1, is_serving=True), "worker.serving"),
    (WorkerMoved(1, is_serving=False, why="signal 9 ended it", again_in=1.0), "worker.lost"),
]


@pytest.mark.parametrize(("event", "name"), EVENTS)
def test_every_event_is_plain_json_under_its_dotted_name(event: Event, name: str) -> None:
    fields = event_fields(event)
    assert fields["event"] == name
    assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
    assert logging.getLevelName(event.level) in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields


@pytest.mark.parametrize(
    "event",
    [
        AttemptFinished(went_live(), generation(), replica=2),
        GenerationLive(generation(), replica=2),
        GenerationEnded(generation(), replica=2),
        ModeChosen(Mode.OVERLAP, replica=2),
        GateChanged(GateState.HOLDING, 1, 2, replica=2),
        PhaseEntered(STEP_7, Phase.PROBING, replica=2),
        ReplicaMoved(2, ReplicaState.LOST, "it hangs", 5.0),
        Warmup(2, 3, 8),
        LoaderDistrusted("leaf b differs", replica=2),
        LiveVerified(generation(), replica=2),
        LiveDrifted(generation(), ("b",), replica=2),
    ],
)
def test_what_happens_to_one_engine_says_which(event: Event) -> None:
    assert event_fields(event)["replica"] == 2


def test_no_kind_of_event_is_left_out_above() -> None:
    assert {type(event) for event, _ in EVENTS} == KINDS


def test_an_attempt_has_the_fields_of_the_contract() -> None:
    assert attempt_fields(rejected()) == {
        "revision": STEP_8.id,
        "label": "step-8",
        "outcome": "rejected",
        "reason": "truncated: model.safetensors ends early",
        "code": "truncated",
        "findings": ["expected 9", "got 7"],
        "phases": {"fetching": 0.5, "validating": 0.25},
        "pause_seconds": 0.0,
        "finished_at": "2023-11-14T22:13:25.000Z",
        "generation": None,
        "weight_version": None,
        "rolled_back": False,
        "by": None,
        **NOT_LOADED,
        "dry_run": False,
        "unproven": None,
        "bake": None,
        "behaviour": None,
        "not_compared": None,
        "command_said": [],
    }


def test_a_dry_run_is_in_the_history_and_is_no_last_attempt() -> None:
    history = History([went_live()])
    history.observe(DryRunFinished(replace(rejected(), dry_run=True), generation()))
    assert [each["dry_run"] for each in history.snapshot()["attempts"]] == [True, False]
    assert history.last == went_live()


def test_an_attempt_that_somebody_asked_for_says_who() -> None:
    assert attempt_fields(replace(went_live(4), by=PIN))["by"] == PIN_FIELDS


def test_how_an_attempt_baked_stands_with_it() -> None:
    history = History([went_live(8), went_live(7)], word=WORD)
    counts = SignalCount("empty", 40, 0.2, 0.5, 20, 0.007, 0.04, 0.1)
    bake = Bake(BakeOutcome.CONVICTED, NOON, NOON + 300, 100, 6, 1000, (counts,), "they are worse")
    history.observe(BakeChanged(7, STEP_7, bake))
    there, other = history.snapshot()["attempts"][::-1]
    assert other["bake"] is None
    assert there["bake"]["outcome"] == "convicted"
    assert there["bake"]["signals"][0] == {
        "signal": "empty",
        "answers": 40,
        "low": 0.2,
        "high": 0.5,
        "old_answers": 20,
        "old_low": 0.007,
        "old_high": 0.04,
        "finds": 0.1,
    }
    assert "bake convicted: they are worse" in there["told"]["notes"]


def test_who_pinned_and_unpinned_stands_in_the_history_newest_first() -> None:
    history = History(pins=[PIN])
    for asked in (OperatorAsked(PIN, None, "read-only"), OperatorAsked(UNPIN)):
        history.observe(asked)
    said = history.snapshot()["pins"]
    assert said == [PIN_FIELDS | {"verb": "unpin"}, PIN_FIELDS]


def test_a_good_attempt_has_a_generation_and_no_reason() -> None:
    fields = attempt_fields(went_live(4))
    assert (fields["generation"], fields["reason"], fields["code"]) == (4, None, None)


def test_times_are_utc() -> None:
    assert iso(NOON + 0.25) == "2023-11-14T22:13:20.250Z"


def test_the_history_is_newest_first_and_bounded() -> None:
    history = History([went_live(2), went_live(1)], kept=3)
    for number in (3, 4):
        history.observe(AttemptFinished(went_live(number), None))
    assert [fields["generation"] for fields in history.snapshot()["attempts"]] == [4, 3, 2]
    assert history.last == went_live(4)


def test_what_went_live_says_what_it_replaced_over_what_failed_between() -> None:
    failed = ended(Outcome.POSTPONED)
    history = History([went_live(3, STEP_8), failed, went_live(2, STEP_7)])
    replaced = [fields["replaced"] for fields in history.snapshot()["attempts"]]
    before = {"generation": 2, "revision": STEP_7.id, "label": "step-7"}
    assert replaced == [before, None, None]


def test_other_events_are_no_history() -> None:
    history = History()
    history.observe(Wait("x"))
    assert history.snapshot()["attempts"] == []
    assert history.last is None
