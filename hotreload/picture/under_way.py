"""The attempt in progress: how long each of its phases took so far."""

import time
from collections.abc import Callable, Iterable

from hotreload.events import AttemptFinished, Event, PhaseEntered
from hotreload.json_fields import Fields, revision_fields
from hotreload.types import Mode, Phase, Revision

USUAL = {
    Mode.OVERLAP: (
        Phase.FETCHING,
        Phase.VALIDATING,
        Phase.STAGING,
        Phase.PROBING,
        Phase.SWAPPING,
    ),
    Mode.DRAIN: (
        Phase.FETCHING,
        Phase.VALIDATING,
        Phase.STAGING,
        Phase.DRAINING,
        Phase.SWAPPING,
        Phase.PROBING,
    ),
}
"""The phases of an attempt that goes well, by how weights take over."""
OF_A_START = (
    Phase.FETCHING,
    Phase.VALIDATING,
    Phase.STAGING,
    Phase.BUILDING,
    Phase.WARMING,
    Phase.PROBING,
)
"""The phases of a start that goes well."""
DOING = {
    Phase.FETCHING: "fetching",
    Phase.VALIDATING: "checking",
    Phase.STAGING: "staging",
    Phase.BUILDING: "building the engine with",
    Phase.WARMING: "compiling for the first requests of",
    Phase.DRAINING: "waiting for requests to end before the swap to",
    Phase.SWAPPING: "swapping to",
    Phase.PROBING: "probing",
    Phase.ROLLING_BACK: "rolling back",
}
"""Words for a phase, which a revision's name follows."""


class UnderWay:
    """Knows the one attempt that has begun and not ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self.phase: Phase | None = None
        self._revision: Revision | None = None
        self._spent: dict[Phase, float] = {}
        self._since = 0.0
        self._replica = 0

    def observe(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case PhaseEntered(revision, phase, replica) if phase is not None:
                self._enter(revision, phase)
                self._replica = replica
            case PhaseEntered() | AttemptFinished():
                self._forget()

    def _enter(self, revision: Revision, phase: Phase) -> None:
        if revision != self._revision:
            self._forget()
        self._spent = self._spent_by_now()
        self._revision, self.phase, self._since = revision, phase, self._clock()
        self._spent.setdefault(phase, 0.0)

    def _spent_by_now(self) -> dict[Phase, float]:
        if self.phase is None:
            return {}
        so_far = self._spent[self.phase] + self._clock() - self._since
        return {**self._spent, self.phase: so_far}

    def fields(self) -> Fields | None:
        """Return the attempt as /status shows it (its last phase still runs), None between two."""
        if self._revision is None:
            return None
        spent = {phase.value: round(took, 6) for phase, took in self._spent_by_now().items()}
        doing = f"{DOING[self.phase]} {self._revision}" if self.phase else None
        return {
            **revision_fields(self._revision),
            "phases": spent,
            "replica": self._replica,
            "doing": doing,
        }

    def expected(self, usual: Iterable[Phase]) -> list[str]:
        """Return which of the usual phases are still to come."""
        return [phase.value for phase in usual if phase not in self._spent]
