"""What is told of a daemon with several engines: of each, and of all of them together."""

from typing import Any

import pytest

from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationEnded,
    GenerationLive,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ModeChosen,
    PhaseEntered,
    ReplicaMoved,
)
from hotreload.observe.metrics import Metrics
from hotreload.picture.picture import ReplicaFigures, Setup
from hotreload.picture.replicas import ReplicasNow
from hotreload.types import AnsweringGeneration, GateState, Mode, Outcome, Phase, ReplicaState
from tests.clock import Clock
from tests.observe.test_log import logged
from tests.observe.test_metrics import value
from tests.observe.test_status import after
from tests.observe.things import (
    NOON,
    STEP_8,
    Counted,
    Told,
    ended,
    engines,
    generation,
    rejected,
    went_live,
)

OLD, NEW = generation(3), generation(4, STEP_8)
LOST, STARTING, SERVING = ReplicaState.LOST, ReplicaState.STARTING, ReplicaState.SERVING
BUSY = ReplicaFigures(inside=3, held=1, answering=[AnsweringGeneration(OLD, 3)])
IDLE = ReplicaFigures()


def opened(replica: int) -> tuple[Event, ...]:
    """A further engine begins to serve."""
    return (
        ReplicaMoved(replica, STARTING),
        GateChanged(GateState.OPEN, 0, 0, replica=replica),
        GenerationLive(OLD, replica),
        ReplicaMoved(replica, SERVING),
    )


FIRST = (
    ModeChosen(Mode.OVERLAP),
    GateChanged(GateState.OPEN, 0, 0),
    GenerationLive(OLD),
)
BOTH = (*FIRST, *opened(1))


def lost(replica: int, again_in: float | None = 5.0) -> tuple[Event, ...]:
    why = "the scheduler thread died"
    gate = GateChanged(GateState.SEALED, 0, 0, why, "engine_lost", replica)
    return (gate, ReplicaMoved(replica, LOST, why, again_in))


def stopping(replica: int) -> GateChanged:
    return GateChanged(GateState.SEALED, 0, 0, "SIGTERM", "stopping", replica)


def status(*events: Event) -> Told:
    return after(*events, others=[BUSY])


def metrics(*events: Event) -> Metrics:
    made = Counted(engines(2))
    for event in events:
        made.observe(event)
    return made


def generations(*events: Event) -> tuple[int | None, list[int | None]]:
    """What the daemon says is live, and what it says of each engine."""
    said = status(*events).snapshot()
    return said["generation"], [each["generation"] for each in said["replicas"]]


def test_it_is_ready_when_the_first_engine_is_and_names_those_that_still_start() -> None:
    booted = status(*FIRST)
    assert booted.picture.ready() == (True, [])
    said = booted.snapshot()
    assert (said["state"], said["generation"]) == ("serving", 3)
    assert [each["state"] for each in said["replicas"]] == ["serving", "starting"]
    assert [each["index"] for each in said["replicas"]] == [0, 1]
    assert value(metrics(*FIRST), "replicas_serving") == 1
    assert value(metrics(*BOTH), "replicas_serving") == 2


def test_each_engine_has_devices_of_its_own() -> None:
    said = Told(setup=Setup(replicas=3, tp=2)).snapshot()
    assert [each["devices"] for each in said["replicas"]] == [[0, 1], [2, 3], [4, 5]]


def test_who_is_at_the_gates_is_told_of_each_and_added_up() -> None:
    said = status(*BOTH).snapshot()
    assert said["gate"] == {"state": "open", "inside": 5 + 3, "held": 6 + 1}
    first, second = said["replicas"]
    assert first["gate"] == {"state": "open", "inside": 5, "held": 6}
    assert second["gate"] == {"state": "open", "inside": 3, "held": 1}
    assert second["answering"] == [{"generation": 3, "requests": 3}]
    assert (second["mode"], said["mode"]) == ("overlap", "overlap")


def test_one_gate_that_is_open_is_enough() -> None:
    holding = GateChanged(GateState.HOLDING, 2, 0)
    assert status(*BOTH, holding).snapshot()["gate"]["state"] == "open"
    both = (holding, GateChanged(GateState.HOLDING, 2, 0, replica=1))
    assert status(*BOTH, *both).snapshot()["gate"]["state"] == "holding"


def test_a_lost_engine_is_told_while_the_other_serves() -> None:
    one_left = status(*BOTH, *lost(0))
    assert one_left.picture.ready() == (True, [])
    said = one_left.snapshot()
    assert (said["state"], said["generation"]) == ("serving", 3)
    gone = said["replicas"][0]
    assert (gone["state"], gone["generation"]) == ("lost", None)
    assert gone["reason"] == "the scheduler thread died"
    assert gone["again_in"] == pytest.approx(5, abs=1)
    page = metrics(*BOTH, *lost(0))
    assert (value(page, "ready"), value(page, "replicas_serving")) == (1, 1)
    numbers = [value(page, "replica_generation", replica=each) for each in ("0", "1")]
    assert numbers == [0, 3]


def test_an_engine_that_was_started_again_serves_as_before() -> None:
    again = (*BOTH, *lost(1), *opened(1))
    back = status(*again).snapshot()["replicas"][1]
    assert (back["state"], back["reason"], back["again_in"]) == ("serving", None, None)
    assert (back["generation"], back["restarts"]) == (3, 1)
    assert value(metrics(*again), "replica_restarts_total", replica="1") == 1
    assert value(metrics(*again), "replica_restarts_total", replica="0") == 0


def test_it_is_counted_down_until_a_lost_engine_is_started_again() -> None:
    wall = Clock(NOON)
    now = ReplicasNow(2, wall)
    for event in (*BOTH, *lost(1, again_in=30.0)):
        now.observe(event)
    wall.now += 10
    assert now.all[1].fields(wall())["again_in"] == 20
    wall.now += 60
    assert now.all[1].fields(wall())["again_in"] == 0


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((*BOTH, *lost(0), *lost(1)), "lost"),
        ((*FIRST, *lost(0)), "lost"),  # and the other has never served
        ((*FIRST, ReplicaMoved(1, LOST, "no room", 5.0)), "serving"),
        ((*BOTH, stopping(0), stopping(1)), "stopping"),
        ((*BOTH, *lost(1), stopping(0)), "stopping"),
        ((*BOTH, PhaseEntered(STEP_8, Phase.PROBING, 1)), "reloading"),
    ],
)
def test_the_state_is_that_of_all_of_them(events: tuple[Event, ...], state: str) -> None:
    assert status(*events).snapshot()["state"] == state
    answers = state in ("serving", "reloading")
    assert value(metrics(*events), "ready") == answers


def test_why_the_last_of_them_was_lost_is_told() -> None:
    assert status(*BOTH, *lost(0), *lost(1)).picture.ready() == (
        False,
        ["lost: the scheduler thread died"],
    )


def test_a_generation_is_live_when_all_that_serve_have_it() -> None:
    half = (*BOTH, PhaseEntered(STEP_8, Phase.PROBING), GenerationLive(NEW, 0))
    assert generations(*half) == (3, [4, 3])
    assert generations(*half, GenerationLive(NEW, 1)) == (4, [4, 4])
    assert generations(*BOTH, *lost(1), GenerationLive(NEW, 0)) == (4, [4, None])


def test_a_reload_that_is_put_back_was_never_live() -> None:
    half = (*BOTH, GenerationLive(NEW, 0))
    back = (GenerationLive(OLD, 0), AttemptFinished(rejected(), OLD, 1))
    put_back = status(*half, *back)
    assert generations(*half, *back) == (3, [3, 3])
    assert put_back.leaves()["previous"] is None
    assert value(metrics(*half), "generation") == 3
    assert value(metrics(*half, *back), "generation") == 3
    assert value(metrics(*half), "replica_generation", replica="0") == 4


def test_what_is_live_at_the_end_of_an_attempt_is_live_though_one_was_lost() -> None:
    events = (*BOTH, GenerationLive(NEW, 0), *lost(1), AttemptFinished(went_live(4), NEW))
    assert generations(*events) == (4, [4, None])
    assert value(metrics(*events), "generation") == 4


def test_an_attempt_that_cost_one_engine_loses_no_other() -> None:
    events = (*BOTH, *lost(1), AttemptFinished(ended(Outcome.LOST), OLD, 0))
    assert status(*events).snapshot()["state"] == "serving"


def test_it_says_on_which_engine_an_attempt_is_at_work() -> None:
    said = status(*BOTH, PhaseEntered(STEP_8, Phase.PROBING, 1)).snapshot()
    assert (said["attempt"]["replica"], said["phase"]) == (1, "probing")


def test_old_generations_fade_until_no_engine_is_asked_under_them() -> None:
    now = ReplicasNow(2)
    flipped = (GenerationLive(NEW, 0), GenerationLive(NEW, 1))
    for event in (*BOTH, *flipped, GenerationEnded(OLD, 0)):
        now.observe(event)
    assert now.older_generations == [OLD]
    now.observe(GenerationEnded(OLD, 1))
    assert now.older_generations == []


def test_an_engine_that_drifted_is_named_until_it_is_lost_or_whole_again() -> None:
    drifted = (*BOTH, LiveDrifted(OLD, ("b",), 1), LiveVerified(OLD, 0))
    said = status(*drifted).snapshot()
    assert said["drifted"]["leaves"] == ["b"]
    assert [each["drifted"] is None for each in said["replicas"]] == [True, False]
    page = metrics(*drifted)
    assert [value(page, "live_drifted", replica=each) for each in ("0", "1")] == [0, 1]
    assert status(*drifted, *lost(1)).snapshot()["drifted"] is None
    assert status(*drifted, LiveVerified(OLD, 1)).snapshot()["drifted"] is None


def test_all_are_verified_since_the_one_that_was_verified_first() -> None:
    wall = Clock(NOON)
    told = Told(setup=Setup(replicas=2), wall=wall)
    told.observe(LiveVerified(OLD, 1))
    assert told.snapshot()["verified_at"] is None
    wall.now += 60
    told.observe(LiveVerified(OLD, 0))
    assert told.snapshot()["verified_at"] == "2023-11-14T22:13:20.000Z"


def test_one_loader_that_is_not_trusted_is_told() -> None:
    distrust = LoaderDistrusted("leaf b differs", 1)
    loader = status(*BOTH, distrust).snapshot()["loader"]
    assert loader == {"trusted": False, "reason": "leaf b differs"}
    page = metrics(*BOTH, distrust)
    assert [value(page, "loader_trusted", replica=each) for each in ("0", "1")] == [1, 0]


def test_the_loss_of_one_is_an_error_in_the_log_that_says_what_becomes_of_it() -> None:
    lines: list[dict[str, Any]] = logged(*lost(1), ReplicaMoved(1, STARTING))
    sealed, gone, starting = lines
    assert (sealed["event"], sealed["replica"]) == ("gate.sealed", 1)
    assert (gone["event"], gone["level"]) == ("replica.lost", "error")
    assert gone["again_in"] == 5
    assert "started again by itself" in gone["todo"]
    assert (starting["event"], starting["level"]) == ("replica.starting", "info")
