"""Attempts and events as JSON fields: the one spelling that log, status and /events share."""

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, assert_never

from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    PhaseEntered,
    Progress,
    RevisionWanted,
    SourceScanned,
    Waiting,
)
from hotreload.types import Attempt, Generation, Reason, Refusal, Revision

Fields = dict[str, Any]
"""A JSON object."""


class History:
    """The last attempts, newest first."""

    def __init__(self, attempts: Iterable[Attempt] = (), *, kept: int = 200) -> None:
        self._attempts = deque(attempts, maxlen=kept)

    def observe(self, event: Event) -> None:
        """Take in an event; only the end of an attempt matters here."""
        if isinstance(event, AttemptFinished):
            self._attempts.appendleft(event.attempt)

    @property
    def last(self) -> Attempt | None:
        """The attempt that ended last."""
        return self._attempts[0] if self._attempts else None

    def attempts(self) -> list[Fields]:
        """Return the attempts as /history shows them."""
        return [attempt_fields(attempt) for attempt in self._attempts]


def attempt_fields(attempt: Attempt) -> Fields:
    """Return one attempt as status, history and admin answers show it."""
    return {
        **revision_fields(attempt.revision),
        "outcome": attempt.outcome.value,
        **reason_fields(attempt.reason),
        "phases": {phase.value: round(spent, 6) for phase, spent in attempt.phases.items()},
        "pause_seconds": round(attempt.pause_seconds, 6),
        "finished_at": iso(attempt.finished_at),
        "generation": attempt.generation,
        "rolled_back": attempt.rolled_back,
    }


def refusal_fields(refusal: Refusal) -> Fields:
    """Return one refused revision as the status shows it."""
    return {
        **revision_fields(refusal.revision),
        **reason_fields(refusal.reason),
        "at": iso(refusal.at),
    }


def generation_fields(generation: Generation) -> Fields:
    """Return what is live as the status shows it."""
    return {
        "generation": generation.number,
        **revision_fields(generation.revision),
        "fingerprint": generation.fingerprint,
        "live_since": iso(generation.since),
    }


def revision_fields(revision: Revision) -> Fields:
    """Return which revision it is, for machines and for people."""
    return {"revision": revision.id, "label": revision.label}


def reason_fields(reason: Reason | None) -> Fields:
    """Return why, in words and as a code; nulls when there is no reason."""
    if reason is None:
        return {"reason": None, "code": None, "findings": []}
    return {
        "reason": f"{reason.code}: {reason.message}",
        "code": reason.code,
        "findings": list(reason.findings),
    }


def event_fields(event: Event) -> Fields:
    """Return an event as JSON fields, its dotted name under `event`: the public log schema."""
    match event:
        case RevisionWanted(revision):
            name, fields = "revision.wanted", revision_fields(revision)
        case Waiting(waiting_for, who):
            name, fields = f"{who}.waiting", {"waiting_for": waiting_for}
        case PhaseEntered(revision, phase):
            entered = {"phase": phase.value if phase else None}
            name, fields = "reload.phase", entered | revision_fields(revision)
        case Progress(revision, phase, done, total):
            there = {"phase": phase.value, "done": done, "total": total}
            name, fields = "reload.progress", there | revision_fields(revision)
        case AttemptFinished(attempt, live):
            answering = {"live": live.number if live else None}
            name, fields = f"reload.{attempt.outcome}", attempt_fields(attempt) | answering
        case GenerationLive(generation):
            name, fields = "generation.live", generation_fields(generation)
        case GateChanged(state, inside, held, reason, code):
            why = {"reason": reason, "code": code}
            name, fields = f"gate.{state}", {"inside": inside, "held": held, **why}
        case SourceScanned(cause, error):
            name, fields = "source.scanned", {"cause": cause, "error": error}
        case _:
            assert_never(event)
    return {"event": name, **fields}


def iso(seconds: float) -> str:
    """Return wall-clock seconds as people and machines both read them, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
