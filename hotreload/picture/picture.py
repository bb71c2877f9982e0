"""The one picture of how things are: every event changes it, and whoever tells of it reads it."""

import time
from collections.abc import Callable
from enum import StrEnum

from hotreload.core.ledger import Ledger
from hotreload.events import Event
from hotreload.picture.booting import Booting
from hotreload.picture.history import History
from hotreload.picture.integrity import Integrity
from hotreload.picture.pace import Pace
from hotreload.picture.passed_over import PassedOverNow
from hotreload.picture.readings import Readings
from hotreload.picture.replicas import ReplicasNow
from hotreload.picture.setup import Setup
from hotreload.picture.surroundings import SettingsNow, SourceNow, StateFileNow, Wishes
from hotreload.picture.troubles import TroublesNow
from hotreload.picture.under_way import UnderWay
from hotreload.types import Generation


class State(StrEnum):
    """The state of the daemon, in one word."""

    BOOTING = "booting"
    SERVING = "serving"
    RELOADING = "reloading"
    FOLLOWING = "following"
    STOPPING = "stopping"
    LOST = "lost"


class Picture:
    """Sees every event, before those who tell of it do; decides nothing and tells nobody."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        setup: Setup | None = None,
        readings: Readings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`ledger` and `readings` are read at the moment somebody asks."""
        self.ledger = ledger
        self.setup = setup or Setup()
        self.readings = readings or Readings()
        self.wall = wall
        self.replicas = ReplicasNow(self.setup.replicas, wall)
        self.under_way = UnderWay(clock)
        self.booting = Booting(lambda: ledger.history, clock, wall)
        self.pace = Pace(clock)
        self.history = History(ledger.history, ledger.pins)
        self.integrity = Integrity(wall, self.setup.replicas)
        self.troubles = TroublesNow(wall)
        self.wishes = Wishes()
        self.source = SourceNow(self.setup.source_kind, wall)
        self.passed_over = PassedOverNow()
        self.state_file = StateFileNow(wall)
        self.settings = SettingsNow(wall)
        self._parts = (
            self.replicas,
            self.under_way,
            self.booting,
            self.pace,
            self.history,
            self.integrity,
            self.troubles,
            self.wishes,
            self.source,
            self.passed_over,
            self.state_file,
            self.settings,
        )

    def observe(self, event: Event) -> None:
        """Take in what happened."""
        for part in self._parts:
            part.observe(event)

    @property
    def live(self) -> Generation | None:
        """The live generation; None while booting."""
        return self.replicas.live

    @property
    def follows(self) -> bool:
        """True where another host decides."""
        return self.setup.rank is not None and self.setup.rank.follows

    @property
    def state(self) -> State:
        """The state of the daemon, in one word."""
        if self.replicas.are_lost:
            return State.LOST
        if self.replicas.ending is not None:
            return State.STOPPING
        if not self.replicas.has_opened:
            return State.BOOTING
        if self.follows:
            return State.FOLLOWING
        return State.RELOADING if self.under_way.phase else State.SERVING

    def ready(self) -> tuple[bool, list[str]]:
        """Say whether any engine answers requests (or will those held), and if not, why.

        A rank that follows answers none: it is ready while it holds its part of the engine.
        """
        match self.state:
            case State.BOOTING:
                is_at_work = self.under_way.phase is not None
                waiting_for = None if is_at_work else self.wishes.waiting_for
                return False, [f"booting: {waiting_for or self.booting.words()}"]
            case State.LOST:
                return False, [f"lost: {self._lost_because}"]
            case State.STOPPING:
                return False, [f"stopping: {self.replicas.ending}"]
            case _:
                return True, []

    @property
    def _lost_because(self) -> str:
        return self.replicas.lost_because or self.replicas.ending or "the engine is lost"
