"""What /status and /readyz say after which events."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hotreload.attempts import Attempt, By, Refusal
from hotreload.core.ledger import Ledger, Overrule
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    LiveDrifted,
    ModeChosen,
    OperatorAsked,
    PhaseEntered,
    Progress,
    RevisionWanted,
    SettingsRead,
    SourceScanned,
    StateSaved,
    Wait,
)
from hotreload.json_fields import loading_fields
from hotreload.picture.picture import Rank, Readings, ReplicaFigures, Setup
from hotreload.picture.status import SHOWN_SECONDS, refusals_shown
from hotreload.types import NOISY, AnsweringGeneration, GateState, Mode, Outcome, Phase, Revision
from tests.clock import Clock
from tests.observe.things import (
    NOON,
    OWN,
    STEP_7,
    STEP_8,
    Told,
    ended,
    generation,
    refusal,
    rejected,
    went_live,
)

OPEN = GateChanged(GateState.OPEN, 0, 0)
HOLDING = GateChanged(GateState.HOLDING, 2, 0)
BOOTED = (GenerationLive(generation(3)), OPEN)


class Pages(Ledger):
    """A ledger that says so."""

    def __init__(
        self,
        refused: dict[str, Refusal] | None = None,
        pinned: bool = False,
        pinned_by: By | None = None,
        overruled: Overrule | None = None,
        history: Sequence[Attempt] = (),
    ) -> None:
        pins = deque([pinned_by] if pinned_by else [])
        super().__init__(
            refused=refused or {},
            pinned=pinned,
            pins=pins,
            overruled=overruled,
            attempts=deque(history),
        )


def after(
    *events: Event,
    pages: Pages | None = None,
    answering: Sequence[AnsweringGeneration] = (),
    others: Sequence[ReplicaFigures] = (),
    rank: Rank | None = None,
) -> Told:
    """How things stand after the events in a daemon with one engine, and some others."""
    gates = (ReplicaFigures(inside=5, held=6, answering=answering), *others)
    status = Told(
        pages,
        readings=Readings(replicas=lambda: gates, answering=lambda: answering),
        setup=Setup(replicas=len(gates), rank=rank),
        clock=lambda: 100.0,
        wall=lambda: NOON + 60,
    )
    for event in events:
        status.observe(event)
    return status


def sealed(reason: str, code: str = "stopping") -> GateChanged:
    return GateChanged(GateState.SEALED, 0, 0, reason, code)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), "booting"),
        ((PhaseEntered(STEP_7, Phase.STAGING),), "booting"),
        (BOOTED, "serving"),
        ((*BOOTED, PhaseEntered(STEP_8, Phase.FETCHING)), "reloading"),
        ((*BOOTED, PhaseEntered(STEP_8, Phase.DRAINING), HOLDING), "reloading"),
        ((*BOOTED, PhaseEntered(STEP_8, Phase.PROBING), PhaseEntered(STEP_8, None)), "serving"),
        ((*BOOTED, sealed("SIGTERM")), "stopping"),
        ((sealed("SIGTERM"),), "stopping"),
        ((*BOOTED, sealed("gone"), AttemptFinished(ended(Outcome.LOST), None)), "lost"),
    ],
)
def test_the_state_follows_the_events(events: tuple[Event, ...], state: str) -> None:
    assert after(*events).snapshot()["state"] == state


@pytest.mark.parametrize(
    ("events", "state", "is_ready"),
    [
        ((), "booting", False),
        ((PhaseEntered(STEP_7, Phase.STAGING),), "booting", False),
        (BOOTED, "following", True),
        ((*BOOTED, PhaseEntered(STEP_8, Phase.FETCHING)), "following", True),
        ((*BOOTED, sealed("rank 0 leaves")), "stopping", False),
        ((*BOOTED, sealed("rank 0 is gone", "engine_lost")), "lost", False),
    ],
)
def test_a_rank_that_follows_is_ready_while_it_holds_its_part_of_the_engine(
    events: tuple[Event, ...], state: str, is_ready: bool
) -> None:
    status = after(*events, rank=Rank(1, 2, "tpu-0:8000"))
    assert (status.snapshot()["state"], status.picture.ready()[0]) == (state, is_ready)
    assert status.snapshot()["rank"] == {"own": 1, "of": 2, "leader": "tpu-0:8000"}


def test_rank_0_serves_as_one_host_does() -> None:
    status = after(*BOOTED, rank=Rank(0, 2, "tpu-0:8000"))
    assert status.snapshot()["state"] == "serving"


def test_a_dead_engine_is_lost_and_not_stopping() -> None:
    status = after(*BOOTED, sealed("the scheduler thread died", "engine_lost"))
    assert status.snapshot()["state"] == "lost"
    assert status.picture.ready() == (False, ["lost: the scheduler thread died"])


def test_what_the_source_and_the_reconciler_wait_for_stand_side_by_side() -> None:
    status = after(Wait("step_9: model.safetensors"), Wait("step_8 is refused", "reconciler"))
    assert status.snapshot()["waiting_for"] == "step_9: model.safetensors; step_8 is refused"
    status.observe(Wait(None))
    assert status.snapshot()["waiting_for"] == "step_8 is refused"


def test_it_is_ready_while_holding_and_not_before_or_after() -> None:
    assert after().picture.ready() == (False, ["booting: the engine is starting"])
    assert after(Wait("a first checkpoint")).picture.ready() == (
        False,
        ["booting: a first checkpoint"],
    )
    assert after(*BOOTED).picture.ready() == (True, [])
    assert after(*BOOTED, HOLDING).picture.ready() == (True, [])
    assert after(*BOOTED, sealed("SIGTERM")).picture.ready() == (False, ["stopping: SIGTERM"])


def test_a_booting_daemon_has_a_whole_document() -> None:
    snapshot = after().snapshot()
    assert {key for key, value in snapshot.items() if value is None} == {
        "generation",
        "revision",
        "label",
        "weight_version",
        "fingerprint",
        "live_since",
        "mode",
        "mode_reason",
        "wanted",
        "wanted_label",
        "waiting_for",
        "waiting_seconds",
        "refused_newer",
        "phase",
        "attempt",
        "progress",
        "loading",
        "drifted",
        "verified_at",
        "last_attempt",
        "pin",
        "overruled",
        "departure",
        "pause",
        "bake",
        "heard",
        "last_life",
        "rank",
    }
    assert snapshot["source"] == {
        "kind": "directory",
        "stale": False,
        "error": None,
        "last_seen": None,
    }
    assert snapshot["gate"]["state"] == "sealed"
    assert snapshot["answering"] == []


def test_the_mode_is_told_with_why_it_drains_when_that_was_not_asked_for() -> None:
    status = after(*BOOTED, ModeChosen(Mode.OVERLAP))
    said = status.snapshot()
    assert (said["mode"], said["mode_reason"]) == ("overlap", None)
    status.observe(ModeChosen(Mode.DRAIN, "it decodes speculatively"))
    said = status.snapshot()
    assert (said["mode"], said["mode_reason"]) == ("drain", "it decodes speculatively")
    assert said["replicas"][0]["mode"] == "drain"


def test_who_answers_is_asked_at_the_moment_somebody_looks() -> None:
    now = [AnsweringGeneration(generation(8, STEP_8), 12), AnsweringGeneration(generation(7), 3)]
    status = after(*BOOTED, answering=now)
    both = [{"generation": 8, "requests": 12}, {"generation": 7, "requests": 3}]
    assert status.snapshot()["answering"] == both
    assert status.snapshot()["replicas"][0]["answering"] == both
    now.pop()
    assert status.snapshot()["answering"] == both[:1]


def test_the_document_says_what_is_live_wanted_and_waited_for() -> None:
    snapshot = after(
        *BOOTED, RevisionWanted(STEP_8), PhaseEntered(STEP_8, Phase.STAGING), Wait("a pin")
    ).snapshot()
    assert snapshot["generation"] == 3
    assert (snapshot["revision"], snapshot["label"]) == (STEP_7.id, "step-7")
    assert (snapshot["fingerprint"], snapshot["live_since"]) == (
        "print-3",
        "2023-11-14T22:13:20.000Z",
    )
    assert (snapshot["wanted"], snapshot["wanted_label"]) == (STEP_8.id, "step-8")
    assert (snapshot["waiting_for"], snapshot["phase"]) == ("a pin", "staging")
    assert snapshot["gate"] == {"state": "open", "inside": 5, "held": 6}
    assert snapshot["replicas"][0]["generation"] == 3
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_a_refused_checkpoint_leaves_what_was_live() -> None:
    snapshot = after(*BOOTED, AttemptFinished(rejected(), generation(3))).snapshot()
    assert snapshot["generation"] == 3
    assert snapshot["last_attempt"]["outcome"] == "rejected"
    assert snapshot["last_attempt"]["reason"] == "truncated: model.safetensors ends early"


def test_a_good_checkpoint_is_live_with_its_attempt() -> None:
    now = generation(4, STEP_8)
    snapshot = after(*BOOTED, GenerationLive(now), AttemptFinished(went_live(), now)).snapshot()
    assert (snapshot["generation"], snapshot["label"]) == (4, "step-8")
    assert snapshot["last_attempt"]["generation"] == 4


def test_refusals_and_the_pin_come_from_the_ledger_newest_first() -> None:
    pages = Pages({"7": refusal(STEP_7, NOON), "8": refusal(STEP_8, NOON + 1)}, pinned=True)
    snapshot = after(pages=pages).snapshot()
    assert [entry["label"] for entry in snapshot["refused"]] == ["step-8", "step-7"]
    assert snapshot["refused"][0]["code"] == "truncated"
    assert snapshot["refused"][0]["at"] == "2023-11-14T22:13:21.000Z"
    assert snapshot["pinned"] is True


def test_the_real_ledger_is_such_a_view() -> None:
    ledger = Ledger(pinned=True, refused={STEP_8.id: refusal()})
    snapshot = Told(ledger, wall=lambda: NOON).snapshot()
    assert snapshot["pinned"] is True
    assert snapshot["refused"][0]["revision"] == STEP_8.id


def test_who_pinned_and_who_overrules_the_source_is_told() -> None:
    by = By("rollback", 1000, 77, NOON, "bad answers")
    pages = Pages(pinned=True, pinned_by=by, overruled=Overrule(STEP_7, STEP_8, by))
    snapshot = after(pages=pages).snapshot()
    who = {"verb": "rollback", "uid": 1000, "pid": 77, "reason": "bad answers"}
    assert snapshot["pin"] == {**who, "at": "2023-11-14T22:13:20.000Z"}
    assert snapshot["overruled"] == snapshot["pin"] | {"revision": STEP_8.id, "label": "step-8"}
    usual = after().snapshot()
    assert (usual["pin"], usual["overruled"]) == (None, None)


def test_noise_that_answers_is_told() -> None:
    noisy = generation(4, Revision(f"{NOISY}1-0.01-3-fp", "step-7 + noise"))
    assert after(*BOOTED).snapshot()["noise"] is False
    assert after(*BOOTED, GenerationLive(noisy)).snapshot()["noise"] is True


def test_a_state_that_is_not_on_the_disk_is_told_while_it_lasts() -> None:
    now = [NOON]
    status = Told(wall=lambda: now[0])
    usual = {"saved": True, "error": None, "since": None}
    assert status.snapshot()["state_file"] == usual
    status.observe(StateSaved("read-only"))
    now[0] += 60
    told = status.snapshot()["state_file"]
    assert told == {"saved": False, "error": "read-only", "since": "2023-11-14T22:13:20.000Z"}
    status.observe(StateSaved())
    assert status.snapshot()["state_file"] == usual


def test_what_became_of_settings_that_were_read_again_is_told() -> None:
    status = Told(wall=lambda: NOON)
    assert status.snapshot()["settings"] == {"read_at": None, "waiting": [], "error": None}
    status.observe(SettingsRead(("[reload] sets",), ("[server] tcp",)))
    at = "2023-11-14T22:13:20.000Z"
    told = {"read_at": at, "waiting": ["[server] tcp"], "error": None}
    assert status.snapshot()["settings"] == told
    status.observe(SettingsRead(error="is not TOML"))
    wrong = {"read_at": at, "waiting": [], "error": "is not TOML"}
    assert status.snapshot()["settings"] == wrong


def test_the_last_attempt_before_a_restart_is_remembered() -> None:
    status = Told(Pages(history=[went_live(9)]))
    assert status.snapshot()["last_attempt"]["generation"] == 9


def test_the_attempt_in_progress_says_how_long_each_phase_took_so_far() -> None:
    clock = Clock()
    status = Told(clock=clock)
    status.observe(PhaseEntered(STEP_8, Phase.FETCHING))
    clock.now += 2
    status.observe(PhaseEntered(STEP_8, Phase.STAGING))
    clock.now += 3
    attempt = status.snapshot()["attempt"]
    assert (attempt["revision"], attempt["label"]) == (STEP_8.id, "step-8")
    assert list(attempt["phases"].items()) == [("fetching", 2.0), ("staging", 3.0)]


def test_another_attempt_begins_anew() -> None:
    began = (PhaseEntered(STEP_7, Phase.STAGING), PhaseEntered(STEP_8, Phase.FETCHING))
    assert list(after(*began).snapshot()["attempt"]["phases"]) == ["fetching"]


def test_the_reasons_of_what_does_not_answer_stand_in_the_document() -> None:
    assert after().snapshot()["reasons"] == ["booting: the engine is starting"]
    assert after(*BOOTED).snapshot()["reasons"] == []
    assert after(*BOOTED, sealed("SIGTERM")).snapshot()["reasons"] == ["stopping: SIGTERM"]


def test_leaves_are_those_of_what_is_live_and_of_what_was_before_it() -> None:
    now = generation(4, STEP_8, a=1, b=3, c=4)
    leaves = after(*BOOTED, GenerationLive(now), AttemptFinished(went_live(), now)).leaves()
    assert (leaves["generation"], leaves["fingerprint"]) == (4, "print-4")
    assert leaves["leaves"] == {"a": 1, "b": 3, "c": 4}
    assert leaves["changed"] == ["b", "c"]
    assert leaves["previous"] == {
        "generation": 3,
        "fingerprint": "print-3",
        "leaves": {"a": 1, "b": 2},
    }


def test_the_first_generation_changed_no_leaf_and_before_it_there_are_none() -> None:
    assert after().leaves() == {
        "generation": None,
        "fingerprint": None,
        "leaves": {},
        "changed": [],
        "previous": None,
    }
    first = after(*BOOTED, AttemptFinished(rejected(), generation(3))).leaves()
    assert (first["leaves"], first["changed"], first["previous"]) == ({"a": 1, "b": 2}, [], None)


def test_it_says_how_the_live_weights_were_loaded_and_whether_they_are_whole() -> None:
    now = generation(4, STEP_8)
    loaded = replace(went_live(), loading=OWN)
    live = (GenerationLive(now), AttemptFinished(loaded, now))
    status = after(*BOOTED, *live, pages=Pages(history=[loaded]))
    assert status.snapshot()["loading"] == loading_fields(OWN)
    assert status.snapshot()["loader"] == {"trusted": True, "reason": None}
    status.observe(LiveDrifted(now, ("b",)))
    assert status.snapshot()["drifted"]["leaves"] == ["b"]
    assert after(*BOOTED, pages=Pages(history=[loaded])).snapshot()["loading"] is None


def test_a_hub_is_stale_until_it_is_seen_and_since_the_last_look_that_worked() -> None:
    status = Told(setup=Setup(source_kind="huggingface"), wall=lambda: 1_700_000_000.0)
    unseen = status.snapshot()["source"]
    assert (unseen["stale"], unseen["last_seen"]) == (True, None)
    assert unseen["error"] == "not seen since the start"
    status.observe(SourceScanned("start"))
    seen = status.snapshot()["source"]
    assert seen == {
        "kind": "huggingface",
        "stale": False,
        "error": None,
        "last_seen": "2023-11-14T22:13:20.000Z",
    }
    status.observe(SourceScanned("rescan", "503"))
    assert status.snapshot()["source"] == {**seen, "stale": True, "error": "503"}


def test_an_event_of_a_download_says_how_fast_it_is_and_how_long_it_takes() -> None:
    now = [100.0]
    status = Told(clock=lambda: now[0])
    for done in (250, 350, 1000):
        status.observe(told := Progress(STEP_8, Phase.FETCHING, done, 1000))
        fields = status.event(told)
        assert (fields["event"], fields["done"]) == ("reload.progress", done)
        paces = {250: (0, None), 350: (50, 13.0), 1000: (188, 0.0)}
        assert (fields["bytes_per_second"], fields["seconds_left"]) == paces[done]
        now[0] += 2
    assert "seconds_left" not in status.event(Wait("a pin"))


def test_every_event_says_when_it_happened_and_an_order_when_it_was_given() -> None:
    status = Told(wall=lambda: NOON)
    assert status.event(Wait("a pin"))["at"] == "2023-11-14T22:13:20.000Z"
    pinned = OperatorAsked(By("pin", 0, 7, NOON - 1))
    assert status.event(pinned)["at"] == "2023-11-14T22:13:19.000Z"


def test_a_download_under_way_says_how_far_it_is() -> None:
    fetching = Progress(STEP_8, Phase.FETCHING, 250, 1000)
    progress = after(*BOOTED, fetching).snapshot()["progress"]
    assert (progress["done_bytes"], progress["total_bytes"]) == (250, 1000)
    assert after(*BOOTED, fetching, PhaseEntered(STEP_8, None)).snapshot()["progress"] is None


# --- refusals: all are remembered, those of checkpoints that are gone are shown for a day --------

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
