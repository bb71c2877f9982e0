"""What /status and /readyz say, kept up to date by events.

Refusals, the pin and what the gate counts are read at the moment somebody asks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum

from hotreload.events import (
    AttemptFinished,
    Event,
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
from hotreload.observe.rank import Rank
from hotreload.observe.refused import shown
from hotreload.observe.replicas import ReplicasNow
from hotreload.observe.summary import summed_up
from hotreload.observe.troubles import TroublesNow
from hotreload.observe.under_way import UnderWay
from hotreload.observe.views import EntranceView, LedgerView, Overruled
from hotreload.types import (
    Answering,
    Attempt,
    Generation,
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
    FOLLOWING = "following"
    STOPPING = "stopping"
    LOST = "lost"


class Status:
    """Sees every event and answers how things stand."""

    def __init__(
        self,
        *,
        ledger_view: Callable[[], LedgerView],
        entrance: EntranceView | None = None,
        tp: int = 1,
        last_attempt: Attempt | None = None,
        clock: Callable[[], float] = time.monotonic,
        source_kind: str = "directory",
        rank: Rank | None = None,
        wall: Callable[[], float] = time.time,
        holds: Callable[[str], bool] = lambda id: False,
    ) -> None:
        """`tp` is how many devices each engine has, one engine's after the other's.

        `rank` is which of several hosts this is; `holds` says which revisions the source has now.
        """
        self._holds = holds
        self._rank = rank
        self._gates = entrance.gates if entrance else ()
        self._answering = entrance.answering if entrance else tuple
        self._replicas = ReplicasNow(max(1, len(self._gates)), wall)
        self._tp = tp
        self._under_way = UnderWay(clock)
        self._booting = Booting(lambda: ledger_view().history, clock, wall)
        self._ledger_view = ledger_view
        self._last_attempt = last_attempt
        self._wanted: Revision | None = None
        self._waits: dict[str, str | None] = {}
        self._pace = Pace(clock)
        self._passed_over = PassedOverNow()
        self._integrity = Integrity(wall, len(self._replicas.all))
        self._troubles = TroublesNow(wall)
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
        self._replicas.observe(event)
        self._troubles.observe(event)
        match event:
            case RevisionWanted(revision):
                self._wanted = revision
            case Waiting(waiting_for, who):
                self._waits[who] = waiting_for
            case SourceScanned(_, error):
                self._source_looked(error)
            case StateSaved(error):
                since = iso(self._wall()) if error else None
                self._state_file = {"saved": error is None, "error": error, "since": since}
            case SettingsRead(_, waiting, error):
                at = iso(self._wall())
                self._settings = {"read_at": at, "waiting": list(waiting), "error": error}
            case AttemptFinished(attempt):
                self._last_attempt = attempt

    @property
    def live(self) -> Generation | None:
        """What is live; None while booting."""
        return self._replicas.live

    def _source_looked(self, error: str | None) -> None:
        """Note a look; if it failed (stale), nobody knows whether the wish is still the newest."""
        seen = self._source["last_seen"] if error else iso(self._wall())
        self._source |= {"stale": error is not None, "error": error, "last_seen": seen}

    @property
    def _waiting_for(self) -> str | None:
        """What a newer checkpoint still lacks, and why a complete one is not tried."""
        return "; ".join(words for words in self._waits.values() if words) or None

    @property
    def state(self) -> State:
        """How the daemon is, in one word."""
        if self._replicas.are_lost:
            return State.LOST
        if self._replicas.ending is not None:
            return State.STOPPING
        if not self._replicas.has_opened:
            return State.BOOTING
        if self._rank is not None and self._rank.follows:
            return State.FOLLOWING
        return State.RELOADING if self._under_way.phase else State.SERVING

    def ready(self) -> tuple[bool, list[str]]:
        """Say whether any engine answers requests (or will those held), and if not, why.

        A rank that follows answers none: it is ready while it holds its part of the engine.
        """
        match self.state:
            case State.BOOTING:
                is_at_work = self._under_way.phase is not None
                waiting_for = None if is_at_work else self._waiting_for
                return False, [f"booting: {waiting_for or self._booting.words()}"]
            case State.LOST:
                return False, [f"lost: {self._lost_because}"]
            case State.STOPPING:
                return False, [f"stopping: {self._replicas.ending}"]
            case _:
                return True, []

    @property
    def _lost_because(self) -> str:
        return self._replicas.lost_because or self._replicas.ending or "the engine is lost"

    def snapshot(self) -> Fields:
        """Return the /status document."""
        ledger = self._ledger_view()
        refused = shown(ledger.refused.values(), self._last_attempt, self._holds, self._wall())
        live = generation_fields(self.live) if self.live else NOBODY
        loading = loading_of(self.live, ledger.history) if self.live else None
        replicas = [self._replica_fields(index) for index in range(len(self._replicas.all))]
        phase = self._under_way.phase
        status: Fields = {
            "state": self.state.value,
            "reasons": self.ready()[1],
            **live,
            **self._mode_fields(),
            "answering": answering_fields(self._answering()),
            "gate": self._gate_fields(replicas),
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
            "troubles": self._troubles.fields(),
            "replicas": replicas,
            "rank": self._rank and asdict(self._rank),
        }
        return {**status, "summary": summed_up(status)}

    def event(self, event: Event) -> Fields:
        """Return an event as /events tells it, now; a download's progress comes with its pace."""
        pace = self._pace.pace() if isinstance(event, Progress) else {}
        return {"at": iso(self._wall()), **event_fields(event), **pace}

    def leaves(self) -> Fields:
        """Return the /leaves document: checksums as they went live, and which of them moved."""
        live, before = self.live, self._replicas.before
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

    def _replica_fields(self, index: int) -> Fields:
        """How one of the engines is: what it holds, who answers in it, and the gate before it."""
        now, gate = self._replicas.all[index], dict(enumerate(self._gates)).get(index)
        return {
            "index": index,
            "devices": list(range(index * self._tp, (index + 1) * self._tp)),
            **now.fields(self._wall()),
            "since": iso(now.since),
            **self._mode_fields(),
            **(generation_fields(now.live) if now.live else NOBODY),
            "answering": answering_fields(gate.answering() if gate else ()),
            "gate": {
                "state": now.gate.value,
                "inside": gate.inside if gate else 0,
                "held": gate.held if gate else 0,
            },
            **self._integrity.fields_of(index),
        }

    def _mode_fields(self) -> Fields:
        """How weights are exchanged: engines of one model do it alike."""
        mode = self._replicas.mode
        return {"mode": mode and mode.value, "mode_reason": self._replicas.mode_reason}

    def _gate_fields(self, replicas: Sequence[Fields]) -> Fields:
        """The gates of all engines, taken together."""
        counts = {name: sum(each["gate"][name] for each in replicas) for name in ("inside", "held")}
        return {"state": self._replicas.gate.value, **counts}


def answering_fields(answering: Sequence[Answering]) -> list[Fields]:
    """Return who answers requests, and how many."""
    return [{"generation": each.generation.number, "requests": each.requests} for each in answering]


def _overruled_fields(overruled: Overruled) -> Fields:
    """Who overrules the source, and which of the source's wishes."""
    return {**by_fields(overruled.by), **revision_fields(overruled.wish)}


def _weights_fields(generation: Generation) -> Fields:
    return {
        "generation": generation.number,
        "fingerprint": generation.fingerprint,
        "leaves": dict(generation.leaves),
    }
