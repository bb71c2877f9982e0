"""The attempt or the start in progress: its phases, and how fast its bytes come."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

from hotreload import events
from hotreload.attempts import Attempt
from hotreload.json_fields import Fields, iso, revision_fields
from hotreload.picture.report import Family, counter, gauge
from hotreload.types import Mode, Outcome, Phase, Revision

FIRST_PHASES = (Phase.FETCHING, Phase.VALIDATING, Phase.STAGING)
USUAL_PHASES = {
    Mode.OVERLAP: (*FIRST_PHASES, Phase.PROBING, Phase.COMPARING, Phase.SWAPPING),
    Mode.DRAIN: (*FIRST_PHASES, Phase.DRAINING, Phase.SWAPPING, Phase.PROBING),
}
"""The phases of an attempt that goes well, by how weights take over."""
START_PHASES = (*FIRST_PHASES, Phase.BUILDING, Phase.WARMING, Phase.PROBING)
"""The phases of a start that goes well."""
DOING_WORDS = {
    Phase.FETCHING: "fetching {}",
    Phase.VALIDATING: "checking {}",
    Phase.STAGING: "staging {}",
    Phase.BUILDING: "building the engine with {}",
    Phase.WARMING: "compiling for the first requests of {}",
    Phase.DRAINING: "waiting for requests to end before the swap to {}",
    Phase.SWAPPING: "swapping to {}",
    Phase.PROBING: "probing {}",
    Phase.COMPARING: "comparing {} with what is live",
    Phase.ROLLING_BACK: "rolling back {}",
}
"""Words for a phase; the revision's name stands in them."""
STEP_STARTING, STEP_WAITING = "starting", "waiting"
"""The steps that are no phase of an attempt."""
PACE_SECONDS = 10.0
"""Seconds that the rate is measured over."""


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

    def observe(self, event: events.Event) -> None:
        """Take in what happened."""
        match event:
            case events.PhaseEntered(revision, phase, replica) if phase is not None:
                self._enter(revision, phase)
                self._replica = replica
            case events.PhaseEntered() | events.AttemptFinished():
                self._forget()

    def _enter(self, revision: Revision, phase: Phase) -> None:
        before = self._revision
        if before is None or (revision != before and not before.is_unread):
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
        doing = DOING_WORDS[self.phase].format(self._revision) if self.phase else None
        return {
            **revision_fields(self._revision),
            "phases": spent,
            "phase_seconds": round(self._clock() - self._since, 3),
            "replica": self._replica,
            "doing": doing,
        }

    def list_expected(self, usual: Iterable[Phase]) -> list[str]:
        """Return which of the usual phases are still to come."""
        return [phase.value for phase in usual if phase not in self._spent]


class BootFields(TypedDict):
    """The step of a start that runs, since when, how far it is, and how long it took last time."""

    step: str
    doing: str
    revision: str | None
    label: str | None
    since: str
    step_since: str
    step_seconds: float
    usual_seconds: float | None
    done: int | None
    total: int | None
    unit: str | None


@dataclass(eq=False)
class BootProgress:
    """Knows which step of the start runs, since when, how far, and how long it took last time.

    It sees every event until the gate opens for the first time.
    """

    history: Callable[[], Iterable[Attempt]] = tuple
    """Return the last attempts, newest first, those of earlier lives among them."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._began = self.wall()
        self._enter(None, None)

    def _enter(self, phase: Phase | None, revision: Revision | None) -> None:
        self._phase, self._revision = phase, revision
        self._since, self._since_wall = self.clock(), self.wall()
        self._done: tuple[int, int] | None = None
        self._waits_for: str | None = None

    def observe(self, event: events.Event) -> None:
        """Take in what happened."""
        match event:
            case events.PhaseEntered(revision, Phase() as phase):
                self._enter(phase, revision)
            case events.PhaseEntered():
                self._enter(None, None)
            case events.Progress(revision, phase, done, total) if phase is self._phase:
                self._done = (done, total)
            case events.Wait(str() as waiting_for, "start") if waiting_for != self._waits_for:
                self._enter(None, None)
                self._waits_for = waiting_for

    def fields(self) -> BootFields:
        """Return the step as /status shows it."""
        (done, total), revision = self._done or (None, None), self._revision
        unit = "batches" if self._phase is Phase.WARMING else "bytes"
        return {
            "step": self._step,
            "doing": self.words(),
            "revision": revision.id if revision else None,
            "label": revision.label if revision else None,
            "since": iso(self._began),
            "step_since": iso(self._since_wall),
            "step_seconds": round(self.clock() - self._since, 3),
            "usual_seconds": self._usual_seconds(),
            "done": done,
            "total": total,
            "unit": unit if self._done else None,
        }

    @property
    def _step(self) -> str:
        if self._phase is not None:
            return self._phase.value
        return STEP_WAITING if self._waits_for else STEP_STARTING

    def words(self) -> str:
        """Say what the start is at."""
        if self._phase is not None:
            return DOING_WORDS[self._phase].format(self._revision)
        return f"waiting for {self._waits_for}" if self._waits_for else "the engine is starting"

    def _usual_seconds(self) -> float | None:
        """Seconds that this step took in the last start that ended well; None if none is known."""
        phase = self._phase
        if phase is None:
            return None
        starts = (a for a in self.history() if a.is_of_a_start and a.outcome is Outcome.LIVE)
        return next((round(a.phases[phase], 3) for a in starts if phase in a.phases), None)


class Pace:
    """Knows the phase under way whose bytes are counted, if there is one.

    A scrape asks on a thread of its own, so what it reads is replaced and never changed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.last: events.Progress | None = None
        """The last word on how far it is."""
        self.began = 0.0
        """The time on the clock at which the bytes of this phase were first counted."""
        self._downloaded = 0
        """Bytes that came from the hub; those that lay here before a download do not count."""
        self._noted: tuple[tuple[float, int], ...] = ()

    def observe(self, event: events.Event) -> None:
        """Take in how far a phase is, or that it is over."""
        match event:
            case events.Progress(phase=Phase.WARMING):
                pass  # counts no bytes
            case events.Progress():
                self._note(event, self._clock())
            case events.PhaseEntered() | events.AttemptFinished() | events.GenerationLive():
                self.last = None

    def fields(self) -> Fields | None:
        """Return which phase is how far, in numbers; None when no bytes are awaited."""
        last = self.last
        if last is None or last.done >= last.total:
            return None
        far = {"done_bytes": last.done, "total_bytes": last.total}
        return {"phase": last.phase.value, **far, **self.pace()}

    def pace(self) -> Fields:
        """Return how fast the bytes come, and how long it still takes (None when nothing comes)."""
        last, rate = self.last, self._rate()
        left = last.total - last.done if last else 0
        return {
            "bytes_per_second": round(rate),
            "seconds_left": round(left / rate, 1) if rate else None,
        }

    def families(self) -> Iterator[Family]:
        """Return the metrics of downloads, even before the first."""
        last = self._download
        share = last.done / last.total if last and last.total else 0
        yield counter("fetched_bytes", "Bytes downloaded from the hub.", self._downloaded)
        words = "Which part of the current download is on the disk, 0 to 1; 0 when there is none."
        yield gauge("fetch_progress_ratio", words, share)
        words = "How large the current download is; 0 when there is none."
        yield gauge("fetch_size_bytes", words, last.total if last else 0)
        words = "How long the current download still takes; 0 without one, +Inf when nothing comes."
        far = self.fields() if last else None
        left = far["seconds_left"] if far else 0
        yield gauge("fetch_remaining_seconds", words, math.inf if left is None else left)

    @property
    def _download(self) -> events.Progress | None:
        """The progress of the current download; None without one, and while bytes are loaded."""
        last = self.last
        return last if last is not None and last.phase is Phase.FETCHING else None

    def _note(self, progress: events.Progress, now: float) -> None:
        before = self._download
        if before and progress.phase is before.phase and progress.revision == before.revision:
            self._downloaded += max(0, progress.done - before.done)
        if self.last is None or progress.revision != self.last.revision:
            self._noted, self.began = (), now
        self.last = progress
        self._noted = (*self._within(now), (now, progress.done))

    def _rate(self) -> float:
        now = self._clock()
        noted = self._within(now)
        if not noted:
            return 0.0
        (since, before), (_, done) = noted[0], noted[-1]
        return max(0, done - before) / max(now - since, 1e-3)

    def _within(self, now: float) -> tuple[tuple[float, int], ...]:
        """Return the notes within the window, or the last one."""
        noted = self._noted
        return tuple(each for each in noted if each[0] >= now - PACE_SECONDS) or noted[-1:]
