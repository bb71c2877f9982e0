"""Lives of daemons, scene by scene: what the events say that observers tell of.

Between them they hold every event there is; a test sees to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hotreload.attempts import By, PassedOver
from hotreload.events import (
    AnswersWithheld,
    AttemptFinished,
    DryRunFinished,
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
)
from hotreload.features.bake.evidence import BAKE, BakeChanged, BakeOutcome
from hotreload.features.command.command import CommandBegan
from hotreload.features.departure.departure import DepartureBegan, DepartureOver
from hotreload.features.pause.pause import PauseBegan, PauseOver
from hotreload.picture.picture import Rank
from hotreload.types import GateState, Mode, Outcome, Phase, Reason, ReplicaState
from tests.evidence import TROUBLES, judged
from tests.golden.observed import Observed, Scene
from tests.golden.scenes import (
    BUSY,
    COMPARED,
    DIED,
    FIRST,
    FOUR,
    NAN,
    NEWER,
    NOISE,
    NOISE_LIVE,
    ONE,
    OPEN,
    PROBE,
    ROOM,
    SECOND,
    STARTED,
    THIRD,
    THREE,
    TWO,
    USUAL,
    answering,
    baked,
    baking,
    by,
    counts,
    ended,
    going_back,
    holding,
    live,
    sees,
    went,
)
from tests.observe.things import NOON, UPSTREAM

BY_A_TRAINER = By(
    "version", None, None, NOON, address="10.0.0.7:4711", route="/update_weight_version"
)

BOOTS = (
    Scene("it has just begun"),
    Scene("it looks for a checkpoint", (SourceScanned("start"), Wait("a checkpoint", "start"))),
    Scene(
        "it builds the engine",
        (
            Wait(None, "start"),
            RevisionWanted(ONE),
            *(PhaseEntered(ONE, phase) for phase in USUAL[:3]),
            Progress(ONE, Phase.STAGING, 40_000_000, 100_000_000),
            PhaseEntered(ONE, Phase.BUILDING),
        ),
    ),
    Scene(
        "it compiles", (PhaseEntered(ONE, Phase.WARMING), Progress(ONE, Phase.WARMING, 3, 8)), sees
    ),
    Scene(
        "it serves",
        (
            PhaseEntered(ONE, Phase.PROBING),
            PhaseEntered(ONE, None),
            ModeChosen(Mode.OVERLAP),
            GenerationLive(FIRST),
            OPEN,
            AttemptFinished(STARTED, FIRST),
            StateSaved(),
            Warmup(0, 3, 8),
        ),
        went(FIRST),
    ),
)
RELOADS = (
    Scene(
        "a newer one is not whole yet",
        (Warmup(0, 8, 8, is_over=True), Wait("2 of 4 shards of step_2")),
        counts,
    ),
    Scene(
        "it is fetched",
        (
            SourceScanned("event"),
            Wait(None),
            RevisionWanted(TWO),
            PhaseEntered(TWO, Phase.FETCHING),
            Progress(TWO, Phase.FETCHING, 1_000_000_000, 3_000_000_000),
        ),
    ),
    Scene("more of it is there", (Progress(TWO, Phase.FETCHING, 2_000_000_000, 3_000_000_000),)),
    Scene("it is staged", tuple(PhaseEntered(TWO, phase) for phase in USUAL[1:3])),
    Scene(
        "a command decides",
        (
            PhaseEntered(TWO, Phase.PROBING),
            PhaseEntered(TWO, Phase.COMPARING),
            CommandBegan(TWO, "judge.sh", 60.0),
        ),
    ),
    Scene(
        "it goes live beside what still answers",
        (
            *(PhaseEntered(TWO, phase) for phase in USUAL[4:]),
            GenerationLive(SECOND),
            AttemptFinished(live(2, TWO), SECOND),
            PhaseEntered(TWO, None),
        ),
        answering((SECOND, 4), (FIRST, 1)),
    ),
    Scene("what answered before ends", (GenerationEnded(FIRST),), went(SECOND)),
)
REFUSALS = (
    Scene(
        "one is refused",
        (RevisionWanted(THREE), AttemptFinished(ended(THREE, Outcome.REJECTED, NAN), SECOND)),
        lambda observed: observed.ledger.refuse(THREE, NAN, NOON),
    ),
    Scene(
        "one is put off",
        (
            RevisionWanted(FOUR),
            AttemptFinished(ended(FOUR, Outcome.POSTPONED, ROOM), SECOND),
            Wait("step_4 is tried again in 2 s", "reconciler"),
        ),
    ),
    Scene(
        "one is let go",
        (
            AttemptFinished(ended(THREE, Outcome.SUPERSEDED, NEWER), SECOND),
            Wait(None, "reconciler"),
        ),
    ),
    Scene(
        "one is taken back",
        (
            PhaseEntered(FOUR, Phase.ROLLING_BACK),
            AttemptFinished(ended(FOUR, Outcome.REJECTED, PROBE, rolled_back=True), SECOND),
        ),
    ),
)
OPERATORS = (
    Scene(
        "a dry run passes",
        (
            OperatorAsked(by("reload"), "step_4"),
            DryRunFinished(
                ended(FOUR, Outcome.PASSED, dry_run=True, by=by("reload"), loading=UPSTREAM), SECOND
            ),
        ),
    ),
    Scene(
        "a dry run proves nothing",
        (
            DryRunFinished(
                judged(ended(FOUR, Outcome.PASSED, dry_run=True), unproven="it has no lanes"),
                SECOND,
            ),
        ),
    ),
    Scene(
        "an operator goes back",
        (
            OperatorAsked(by("rollback", "it talks too much"), "1"),
            RevisionWanted(ONE),
            GenerationLive(THIRD),
            AttemptFinished(live(3, ONE, None, by=by("rollback", "it talks too much")), THIRD),
        ),
        going_back,
    ),
    Scene(
        "an operator pins",
        (
            OperatorAsked(by("pin", "evaluation")),
            Wait("a pin holds generation 3", "reconciler"),
        ),
        lambda observed: observed.ledger.set_pinned(True, by("pin", "evaluation")),
    ),
    Scene(
        "an operator is refused, and unpins",
        (OperatorAsked(by("reload"), "step_9", "there is no step_9"), OperatorAsked(by("unpin"))),
        lambda observed: observed.ledger.set_pinned(False, by("unpin")),
    ),
    Scene(
        "a trainer names what answers",
        (OperatorAsked(BY_A_TRAINER, "step 7"), GenerationNamed(replace(THIRD, version="step 7"))),
    ),
    Scene(
        "noise answers",
        (
            OperatorAsked(by("perturb"), "seed 7"),
            GenerationLive(NOISE_LIVE),
            AttemptFinished(live(4, NOISE, None, by=by("perturb")), NOISE_LIVE),
        ),
    ),
)
TROUBLED = (
    Scene(
        "troubles begin",
        tuple(TroubleNews(code, f"{code} stands", "mend it") for code in TROUBLES),
    ),
    Scene("all but one are over", tuple(TroubleNews(code, None) for code in TROUBLES[1:])),
)
FAULTS = (
    Scene(
        "the source does not answer, twice",
        (SourceScanned("rescan", "EIO"), SourceScanned("rescan", "EIO")),
    ),
    Scene(
        "folders are passed over",
        (
            SourceScanned("rescan"),
            FoldersPassedOver(
                (PassedOver("final", Reason("no_step", "final has no step")),),
                {"no_step": 2},
            ),
        ),
    ),
    Scene("the state is not saved", (StateSaved("the disk is full"),)),
    Scene(
        "settings were read, with some that wait, and then were wrong",
        (
            SettingsRead(("log.level",)),
            SettingsRead((), ("engine.tp",)),
            SettingsRead(error="[log] level: 'loud' is unknown"),
        ),
    ),
    Scene(
        "weights are no longer what went live",
        (
            AnswersWithheld(NOISE_LIVE, 3),
            LoaderDistrusted("ours made another leaf"),
            LiveDrifted(NOISE_LIVE, ("a", "b")),
            SocketBoundAnew("/run/hotreload/hotreload.sock"),
        ),
    ),
    Scene("the life before died", (LastLifeDied("the daemon before this one died", False),)),
    Scene("they are whole again", (LiveVerified(NOISE_LIVE), StateSaved(), SettingsRead())),
)
STOPS = (
    Scene("it is told to stop", (StopRequested(),)),
    Scene(
        "nobody is let in",
        (GateChanged(GateState.SEALED, 0, 0, "hotreload is stopping", "stopping"),),
    ),
)
DRAINS = (
    *BOOTS[:4],
    Scene("swaps drain", (ModeChosen(Mode.DRAIN, "it decodes speculatively"),)),
    Scene("it serves", (GenerationLive(SECOND), OPEN)),
    Scene(
        "requests are held",
        (PhaseEntered(THREE, Phase.DRAINING), GateChanged(GateState.HOLDING, 2, 5)),
        holding,
    ),
    Scene(
        "the drain was too long", (AttemptFinished(ended(THREE, Outcome.POSTPONED, BUSY), SECOND),)
    ),
    Scene(
        "the engine is lost",
        (
            GateChanged(GateState.SEALED, 0, 0, DIED, "engine_lost"),
            AttemptFinished(ended(FOUR, Outcome.LOST, Reason("engine_lost", DIED)), None),
        ),
    ),
)
REPLICAS = (
    Scene(
        "both serve",
        tuple(
            event
            for index in (0, 1)
            for event in (
                ReplicaMoved(index, ReplicaState.STARTING),
                ModeChosen(Mode.OVERLAP, replica=index),
                GenerationLive(FIRST, index),
                replace(OPEN, replica=index),
                ReplicaMoved(index, ReplicaState.SERVING),
            )
        ),
        went(FIRST),
    ),
    Scene(
        "the first has a newer one",
        (PhaseEntered(TWO, Phase.SWAPPING), GenerationLive(SECOND)),
        answering((SECOND, 3), (FIRST, 1)),
    ),
    Scene(
        "so has the second",
        (
            GenerationLive(SECOND, 1),
            AttemptFinished(live(2, TWO), SECOND),
            GenerationEnded(FIRST),
            GenerationEnded(FIRST, 1),
        ),
    ),
    Scene(
        "the second is lost",
        (
            GateChanged(GateState.SEALED, 0, 0, DIED, "engine_lost", 1),
            ReplicaMoved(1, ReplicaState.LOST, DIED, 5.0),
            WorkerMoved(1, is_serving=True),
            WorkerMoved(2, is_serving=False, why="signal 9 ended it", again_in=1.0),
        ),
    ),
    Scene("it is started again", (ReplicaMoved(1, ReplicaState.STARTING),)),
)
RANKS = (
    Scene("it serves", (RevisionWanted(ONE), PhaseEntered(ONE, Phase.BUILDING), OPEN)),
    Scene("it has weights", (GenerationLive(FIRST), PhaseEntered(ONE, None)), went(FIRST)),
    Scene("a step is done", (PhaseEntered(TWO, Phase.STAGING),)),
    Scene("and over", (GenerationLive(SECOND), PhaseEntered(TWO, None))),
)
LEADER = "10.0.0.1:7000"

PAUSES = (
    Scene("it serves", (GenerationLive(FIRST), OPEN, RevisionWanted(ONE)), answering((FIRST, 2))),
    Scene(
        "a trainer pauses",
        (PauseBegan(by("pause"), "retract", "finish", 600.0),),
        lambda observed: setattr(observed, "paused", 3),
    ),
    Scene("and again", (PauseBegan(by("pause"), "abort", "abort", 600.0),)),
    Scene("the machine is to go", (DepartureBegan("Google Cloud preempts it", 25.0),)),
    Scene("it stays", (DepartureOver("Google Cloud preempts it"),)),
    Scene("it goes on", (PauseOver(by("continue"), 3),)),
    Scene("it pauses, and dies", (PauseBegan(by("pause"), "abort", "abort", 600.0),)),
    Scene("nobody ended it", (PauseOver(None, 3),)),
)

_WORSE = "its answers are worse than those of generation 1"
BAKES = (
    Scene("it serves", (GenerationLive(FIRST), OPEN, RevisionWanted(ONE)), answering((FIRST, 2))),
    Scene(
        "a checkpoint goes live, and is judged",
        (
            GenerationLive(SECOND),
            AttemptFinished(judged(live(2, TWO), behaviour=COMPARED), SECOND),
            BakeChanged(2, TWO, baked(BakeOutcome.BAKING, 0)),
        ),
        baking,
    ),
    Scene("few answer", (BakeChanged(2, TWO, baked(BakeOutcome.HELD, 3, "120 answers are few")),)),
    Scene(
        "it is convicted",
        (BakeChanged(2, TWO, baked(BakeOutcome.CONVICTED, 40, _WORSE)),),
        lambda observed: setattr(observed, "bake", None),
    ),
    Scene(
        "and left",
        (
            GenerationLive(THIRD),
            AttemptFinished(live(3, ONE, None, by=by(BAKE, _WORSE)), THIRD),
        ),
    ),
)


@dataclass(frozen=True)
class Life:
    """A daemon's life in chapters of scenes; each chapter has a golden file of its own."""

    begin: Callable[[], Observed]
    chapters: Mapping[str, Sequence[Scene]]


LIVES = (
    Life(
        Observed,
        {
            "boots": BOOTS,
            "reloads": RELOADS,
            "refusals": REFUSALS,
            "operators": OPERATORS,
            "troubles": TROUBLED,
            "faults": FAULTS,
            "stops": STOPS,
        },
    ),
    Life(lambda: Observed(kind="huggingface"), {"drains, with a hub": DRAINS}),
    Life(lambda: Observed(engines=2), {"two engines": REPLICAS}),
    Life(Observed, {"pauses": PAUSES}),
    Life(Observed, {"bakes": BAKES}),
    Life(lambda: Observed(rank=Rank(0, 2, LEADER)), {"rank 0 of two": RANKS}),
    Life(lambda: Observed(rank=Rank(1, 2, LEADER)), {"rank 1 of two": RANKS}),
)


@dataclass(frozen=True)
class Moment:
    """A daemon just after a scene."""

    chapter: str
    scene: Scene
    observed: Observed

    @property
    def title(self) -> str:
        """The chapter and the scene."""
        return f"{self.chapter}: {self.scene.name}"


def moments(life: Life, *, is_logged: bool = False) -> Iterator[Moment]:
    """Play a life scene by scene."""
    observed = life.begin()
    if is_logged:
        observed.is_logged()
    for chapter, scenes in life.chapters.items():
        for scene in scenes:
            observed.play(scene)
            yield Moment(chapter, scene, observed)


def all_moments() -> Iterator[Moment]:
    """Play every life."""
    for life in LIVES:
        yield from moments(life)


LOOKED_AT = {
    "boots: it builds the engine",
    "reloads: it goes live beside what still answers",
    "refusals: one is taken back",
    "operators: an operator is refused, and unpins",
    "troubles: troubles begin",
    "drains, with a hub: requests are held",
    "two engines: the second is lost",
    "bakes: few answer",
    "rank 1 of two: it has weights",
}
"""The titles of moments whose pictures are kept whole, by each command and by the page."""
