"""Events to observe, and those who tell of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hotreload.attempts import Attempt, Refusal
from hotreload.core.ledger import Ledger
from hotreload.events import Event
from hotreload.features import FEATURES
from hotreload.observe.metrics import Metrics
from hotreload.picture.picture import Picture, Readings, Setup
from hotreload.picture.report import FeatureReport
from hotreload.picture.status import Status
from hotreload.server.http.request_log import COUNTED_FROM_THE_START, COUNTED_ONCE_ASKED
from hotreload.types import Generation, LoadFacts, Outcome, Phase, Reason, Revision
from tests.evidence import REASONS, WORD, judged
from tests.features.given import report_of as default_report_of

if TYPE_CHECKING:
    from hotreload.features.bake.evidence import Bake
    from hotreload.features.compare.replay import HearingNow

STEP_7 = Revision("7" * 40, "step-7")
STEP_8 = Revision("8" * 40, "step-8")
TRUNCATED = Reason("truncated", "model.safetensors ends early", ("expected 9", "got 7"))
NOON = 1_700_000_000.0  # 2023-11-14T22:13:20Z

OWN = LoadFacts(
    "own",
    leaves_staged=12,
    leaves_shared=18,
    bytes_read=600,
    leaves_changed=12,
    largest_change=0.04,
    most_changed="layers.3.down_proj",
)
UPSTREAM = LoadFacts("upstream", "it is fp8", leaves_staged=30, bytes_read=1000, leaves_changed=30)


def generation(number: int = 3, revision: Revision = STEP_7, **leaves: int) -> Generation:
    return Generation(number, revision, f"print-{number}", NOON, leaves or {"a": 1, "b": 2})


def went_live(number: int = 4, revision: Revision = STEP_8) -> Attempt:
    spent = {Phase.FETCHING: 0.5, Phase.STAGING: 1.25, Phase.SWAPPING: 0.003}
    return judged(Attempt(revision, Outcome.LIVE, None, spent, 0.04, NOON, number))


def rejected(reason: Reason = TRUNCATED, *, rolled_back: bool = False) -> Attempt:
    spent = {Phase.FETCHING: 0.5, Phase.VALIDATING: 0.25}
    ended = Attempt(STEP_8, Outcome.REJECTED, reason, spent, 0.0, NOON + 5)
    return replace(judged(ended), rolled_back=rolled_back)


def ended(outcome: Outcome) -> Attempt:
    return judged(Attempt(STEP_8, outcome, Reason("drain", "busy"), {}, 0.0, NOON))


def refusal(revision: Revision = STEP_8, at: float = NOON) -> Refusal:
    return Refusal(revision, TRUNCATED, at)


@dataclass
class Read:
    """What reports read of their features, as it is at the moment of a question."""

    bake: "Callable[[], Bake | None]" = lambda: None
    left: "Callable[[], Bake | None]" = lambda: None
    hearing: "Callable[[], HearingNow | None]" = lambda: None
    paused: Callable[[], int] = lambda: 0


def reports(
    ledger: Ledger | None = None, clock: Callable[[], float] | None = None, **read: Any
) -> list[FeatureReport]:
    """Those of all features; what is a feature's is imported only if there is that feature."""
    reads, ledger = Read(**read), ledger or Ledger()

    def report_of(name: str) -> FeatureReport:
        match name:
            case "departure":
                from hotreload.features.departure.departure import DepartureReport

                return DepartureReport(clock or time.time)
            case "pause":
                from hotreload.features.pause.pause import PauseReport

                return PauseReport(reads.paused, clock or time.time)
            case "bake":
                from hotreload.features.bake.report import BakeReport

                return BakeReport(reads.bake, reads.left)
            case "compare":
                from hotreload.features.compare.report import CompareReport

                return CompareReport(reads.hearing, ledger.attempts)
            case "command":
                from hotreload.features.command.judge import CommandReport

                return CommandReport(ledger, clock or time.monotonic)
        return default_report_of(next(each for each in FEATURES if each.name == name))

    return [report_of(each.name) for each in FEATURES]


def picture_of(ledger: Ledger | None = None, **how: Any) -> Picture:
    """A daemon's picture, with the reports of all features."""
    ledger = ledger or Ledger()
    return Picture(ledger, **{"reports": reports(ledger, how.get("clock")), "word": WORD, **how})


class Told(Status):
    """The documents of a picture that hears of events here."""

    def __init__(self, ledger: Ledger | None = None, **how: Any) -> None:
        self.picture = picture_of(ledger, **how)
        super().__init__(self.picture)

    def observe(self, event: Event) -> None:
        self.picture.observe(event)


class Counted(Metrics):
    """The metrics of a picture that hears of events here, before they do as in a daemon."""

    def __init__(self, picture: Picture | None = None, **how: Any) -> None:
        self.picture = picture or picture_of()
        super().__init__(
            self.picture,
            routes=COUNTED_FROM_THE_START,
            later_routes=COUNTED_ONCE_ASKED,
            reasons=REASONS,
            **how,
        )

    def observe(self, event: Event) -> None:
        self.picture.observe(event)
        super().observe(event)


def engines(count: int, **readings: Any) -> Picture:
    """A picture of a daemon that is to have so many engines."""
    return picture_of(setup=Setup(replicas=count), readings=Readings(**readings))


def both(*observers: Any) -> Callable[[Event], None]:
    """Tell one after the other."""

    def observe(event: Event) -> None:
        for each in observers:
            each.observe(event)

    return observe
