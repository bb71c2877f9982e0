"""What /status and /readyz say, kept up to date by events.

Refusals, the pin and what the gate counts are read at the moment somebody asks.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from hotreload.errors import EngineLost
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    ModeChosen,
    Progress,
    RevisionWanted,
    SettingsRead,
    SourceScanned,
    StateSaved,
    Waiting,
)
from hotreload.observe.booting import Booting
from hotreload.observe.history import (
    Fields,
    attempt_fields,
    by_fields,
    event_fields,
    generation_fields,
    iso,
    refusal_fields,
    revision_fields,
)
from hotreload.observe.integrity import Integrity
from hotreload.observe.loading import loading_fields, loading_of
from hotreload.observe.passed_over import PassedOverNow
from hotreload.observe.progress import Pace
from hotreload.observe.under_way import UnderWay
from hotreload.types import (
    Answering,
    Attempt,
    By,
    GateState,
    Generation,
    Outcome,
    Refusal,
    Revision,
)

NOBODY: Fields = {
    "generation": None,
    "revision": None,
    "label": None,
    "fingerprint": None,
    "live_since": None,
}

NOT_SEEN = "not seen since the start"


class State(StrEnum):
    """How the daemon is, in one word."""

    BOOTING = "booting"
    SERVING = "serving"
    RELOADING = "reloading"
    STOPPING = "stopping"
    LOST = "lost"


class Overruled(Protocol):
    """An operator's choice that overrules the source."""

    @property
    def wish(self) -> Revision:
        """What the source still wishes."""
        ...

    @property
    def by(self) -> By:
        """Who chose another revision."""
        ...


class LedgerView(Protocol):
    """What the status shows of the ledger."""

    @property
    def refused(self) -> Mapping[str, Refusal]:
        """Revisions that are not tried again, by id."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether an operator holds the live generation."""
        ...

    @property
    def pinned_by(self) -> By | None:
        """Who pinned it."""
        ...

    @property
    def overruled(self) -> Overruled | None:
        """The operator's choice that overrules the source, if there is one."""
        ...

    @property
    def history(self) -> Iterable[Attempt]:
        """The last attempts, newest first."""
        ...


class Status:
    """Sees every event and answers how things stand."""

    def __init__(
        self,
        *,
        ledger_view: Callable[[], LedgerView],
        gate_counts: Callable[[], tuple[int, int]] = lambda: (0, 0),
        answering: Callable[[], Sequence[Answering]] = tuple,
        last_attempt: Attempt | None = None,
        clock: Callable[[], float] = time.monotonic,
        source_kind: str = "directory",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.live: Generation | None = None
        self._before: Generation | None = None
        self._under_way = UnderWay(clock)
        self._booting = Booting(lambda: ledger_view().history)
        self._ledger_view = ledger_view
        self._gate_counts = gate_counts
        self._answering = answering
        self._mode: Fields = {"mode": None, "mode_reason": None}
        self._last_attempt = last_attempt
        self._wanted: Revision | None = None
        self._waits: dict[str, str | None] = {}
        self._gate = GateState.SEALED
        self._sealed_because: str | None = None
        self._opened = False
        self._lost = False
        self._pace = Pace(clock)
        self._passed_over = PassedOverNow()
        self._integrity = Integrity(wall)
        self._wall = wall
        self._state_file: Fields = {"saved": True, "error": None, "since": None}
        self._settings: Fields = {"read_at": None, "waiting": [], "error": None}
        # A folder answers the first look; a hub may be out of reach from the start.
        is_far = source_kind != "directory"
        self._source: Fields = {
            "kind": source_kind,
            "stale": is_far,
            "error": NOT_SEEN if is_far else None,
            "last_seen": None,
        }

    def observe(self, event: Event) -> None:
        """Take in what happened."""
        self._under_way.observe(event)
        self._booting.observe(event)
        self._pace.observe(event)
        self._passed_over.observe(event)
        self._integrity.observe(event)
        match event:
            case RevisionWanted(revision):
                self._wanted = revision
            case Waiting(waiting_for, who):
                self._waits[who] = waiting_for
            case GenerationLive(generation):
                self._went_live(generation)
            case ModeChosen(mode, why):
                self._mode = {"mode": mode.value, "mode_reason": why}
            case GateChanged():
                self._gate_moved(event)
            case SourceScanned(_, error):
                self._source_looked(error)
            case StateSaved(error):
                since = iso(self._wall()) if error else None
                self._state_file = {"saved": error is None, "error": error, "since": since}
            case SettingsRead(_, waiting, error):
                at = iso(self._wall())
                self._settings = {"read_at": at, "waiting": list(waiting), "error": error}
            case AttemptFinished(attempt, live):
                self._last_attempt = attempt
                self._went_live(live)
                self._lost |= attempt.outcome is Outcome.LOST

    def _went_live(self, generation: Generation | None) -> None:
        if generation is None or generation == self.live:
            return
        self._before, self.live = self.live, generation

    def _source_looked(self, error: str | None) -> None:
        """Note a look; if it failed (stale), nobody knows whether the wish is still the newest."""
        seen = self._source["last_seen"] if error else iso(self._wall())
        self._source |= {"stale": error is not None, "error": error, "last_seen": seen}

    def _gate_moved(self, event: GateChanged) -> None:
        self._gate = event.state
        self._opened |= event.state is GateState.OPEN
        if event.state is GateState.SEALED:
            self._sealed_because = event.reason or "the gate is sealed"
            self._lost |= event.code == EngineLost.code

    @property
    def _waiting_for(self) -> str | None:
        """What a newer checkpoint still lacks, and why a complete one is not tried."""
        return "; ".join(words for words in self._waits.values() if words) or None

    @property
    def state(self) -> State:
        """How the daemon is, in one word."""
        if self._lost:
            return State.LOST
        if self._sealed_because is not None:
            return State.STOPPING
        if not self._opened:
            return State.BOOTING
        return State.RELOADING if self._under_way.phase else State.SERVING

    def ready(self) -> tuple[bool, list[str]]:
        """Say whether requests are answered (held ones will be), and if not, why."""
        match self.state:
            case State.BOOTING:
                is_at_work = self._under_way.phase is not None
                waiting_for = None if is_at_work else self._waiting_for
                return False, [f"booting: {waiting_for or self._booting.words()}"]
            case State.LOST:
                return False, [f"lost: {self._sealed_because or 'the engine is lost'}"]
            case State.STOPPING:
                return False, [f"stopping: {self._sealed_because}"]
            case _:
                return True, []

    def snapshot(self) -> Fields:
        """Return the /status document."""
        ledger = self._ledger_view()
        refused = sorted(ledger.refused.values(), key=lambda refusal: -refusal.at)
        live = generation_fields(self.live) if self.live else NOBODY
        loading = loading_of(self.live, ledger.history) if self.live else None
        engine = {**live, **self._engine_fields()}
        phase = self._under_way.phase
        return {
            "state": self.state.value,
            "reasons": self.ready()[1],
            **engine,
            "wanted": self._wanted.id if self._wanted else None,
            "wanted_label": self._wanted.label if self._wanted else None,
            "waiting_for": self._waiting_for,
            "phase": phase.value if phase else None,
            "attempt": self._under_way.fields(),
            "boot": self._booting.fields() if self.state is State.BOOTING else None,
            "progress": self._pace.fields(),
            "source": dict(self._source),
            **self._passed_over.fields(),
            "last_attempt": attempt_fields(self._last_attempt) if self._last_attempt else None,
            "refused": [refusal_fields(refusal) for refusal in refused],
            "pinned": ledger.pinned,
            "pin": ledger.pinned_by and by_fields(ledger.pinned_by),
            "overruled": ledger.overruled and _overruled_fields(ledger.overruled),
            "loading": loading and loading_fields(loading),
            **self._integrity.fields(),
            "noise": self.live is not None and self.live.revision.is_noise,
            "state_file": dict(self._state_file),
            "settings": dict(self._settings),
            "replicas": [engine],
        }

    def event(self, event: Event) -> Fields:
        """Return an event as /events tells it, now; a download's progress comes with its pace."""
        pace = self._pace.pace() if isinstance(event, Progress) else {}
        return {"at": iso(self._wall()), **event_fields(event), **pace}

    def leaves(self) -> Fields:
        """Return the /leaves document: checksums as they went live, and which of them moved."""
        live, before = self.live, self._before
        old = before.leaves if before else None
        new = live.leaves if live else {}
        moved = [] if old is None else sorted(p for p in new if new[p] != old.get(p))
        return {
            "generation": live.number if live else None,
            "fingerprint": live.fingerprint if live else None,
            "leaves": dict(new),
            "changed": moved,
            "previous": _weights_fields(before) if before else None,
        }

    def _engine_fields(self) -> Fields:
        """How weights are exchanged in the engine, who answers in it, and the gate before it."""
        inside, held = self._gate_counts()
        return {
            **self._mode,
            "answering": [
                {"generation": each.generation.number, "requests": each.requests}
                for each in self._answering()
            ],
            "gate": {"state": self._gate.value, "inside": inside, "held": held},
        }


def _overruled_fields(overruled: Overruled) -> Fields:
    """Who overrules the source, and which of the source's wishes."""
    return {**by_fields(overruled.by), **revision_fields(overruled.wish)}


def _weights_fields(generation: Generation) -> Fields:
    return {
        "generation": generation.number,
        "fingerprint": generation.fingerprint,
        "leaves": dict(generation.leaves),
    }
