"""Attempts and events as JSON fields: the one spelling that log, status and /events share."""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, assert_never

from hotreload.events import (
    AnswersWithheld,
    AttemptFinished,
    DryRunFinished,
    Event,
    FoldersPassedOver,
    GateChanged,
    GenerationEnded,
    GenerationLive,
    Leaving,
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
    TroubleTold,
    Waiting,
)
from hotreload.observe.loading import loading_fields
from hotreload.observe.passed_over import passed_over_fields
from hotreload.types import Attempt, By, Generation, Reason, Refusal, Revision

Fields = dict[str, Any]
"""A JSON object."""
SHOWN_LEAVES = 10
"""How many leaves are named that drifted; all of them are counted."""


class History:
    """The last attempts, and who pinned and unpinned, newest first."""

    def __init__(
        self, attempts: Iterable[Attempt] = (), pins: Iterable[By] = (), *, kept: int = 200
    ) -> None:
        self._attempts = deque(attempts, maxlen=kept)
        self._pins = deque(pins, maxlen=kept)

    def observe(self, event: Event) -> None:
        """Take in an attempt that ended, or a pin or unpin, which makes no attempt."""
        match event:
            case AttemptFinished(attempt) | DryRunFinished(attempt):
                self._attempts.appendleft(attempt)
            case OperatorAsked(By("pin" | "unpin") as by, _, None):
                self._pins.appendleft(by)

    @property
    def last(self) -> Attempt | None:
        """The attempt that ended last; dry runs are none."""
        return next((each for each in self._attempts if not each.dry_run), None)

    def snapshot(self) -> Fields:
        """Return the /history document."""
        attempts = [
            {**attempt_fields(attempt), "replaced": replaced and went_live_fields(replaced)}
            for attempt, replaced in self._with_what_they_replaced()
        ]
        return {"attempts": attempts, "pins": [by_fields(by) for by in self._pins]}

    def _with_what_they_replaced(self) -> Iterator[tuple[Attempt, Attempt | None]]:
        """Each attempt, and where it went live the attempt whose weights were live before."""
        before: Attempt | None = None
        pairs = list[tuple[Attempt, Attempt | None]]()
        for attempt in reversed(self._attempts):
            pairs.append((attempt, before if attempt.generation is not None else None))
            before = attempt if attempt.generation is not None else before
        return reversed(pairs)


def went_live_fields(attempt: Attempt) -> Fields:
    """Return the generation that an attempt made."""
    return {"generation": attempt.generation, **revision_fields(attempt.revision)}


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
        "by": attempt.by and by_fields(attempt.by),
        **loading_fields(attempt.loading),
        "dry_run": attempt.dry_run,
        "unproven": attempt.unproven or None,
    }


def by_fields(by: By) -> Fields:
    """Return who asked for a change, when and what for."""
    who = {"verb": by.verb, "uid": by.uid, "pid": by.pid}
    return {**who, "at": iso(by.at), "reason": by.reason}


def refusal_fields(refusal: Refusal) -> Fields:
    """Return one refused revision as the status shows it."""
    return {
        **revision_fields(refusal.revision),
        **reason_fields(refusal.reason),
        "at": iso(refusal.at),
    }


def generation_fields(generation: Generation) -> Fields:
    """Return the live generation as the status shows it."""
    return {
        "generation": generation.number,
        **revision_fields(generation.revision),
        "fingerprint": generation.fingerprint,
        "live_since": iso(generation.since),
    }


def revision_fields(revision: Revision) -> Fields:
    """Return a revision's id, for machines, and its label, for people."""
    return {"revision": revision.id, "label": revision.label}


def drift_fields(event: LiveDrifted) -> Fields:
    """Return the live leaves that are no longer what went live: the first named, all counted."""
    return {"leaves": list(event.leaves[:SHOWN_LEAVES]), "leaves_total": len(event.leaves)}


def reason_fields(reason: Reason | None) -> Fields:
    """Return a reason in words and as a code; nulls when there is none."""
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
        case PhaseEntered(revision, phase, replica):
            entered = {"phase": phase.value if phase else None, "replica": replica}
            name, fields = "reload.phase", entered | revision_fields(revision)
        case Progress(revision, phase, done, total):
            there = {"phase": phase.value, "done": done, "total": total}
            name, fields = "reload.progress", there | revision_fields(revision)
        case AttemptFinished(attempt, live, replica):
            answering = {"live": live.number if live else None, "replica": replica}
            name, fields = f"reload.{attempt.outcome}", attempt_fields(attempt) | answering
        case DryRunFinished(attempt, live, replica):
            answering = {"live": live.number if live else None, "replica": replica}
            name, fields = "reload.dry_run", attempt_fields(attempt) | answering
        case GenerationLive(generation, replica):
            name, fields = "generation.live", generation_fields(generation) | {"replica": replica}
        case GenerationEnded(generation, replica):
            name, fields = "generation.ended", generation_fields(generation) | {"replica": replica}
        case ReplicaMoved(replica, moved, reason, again_in):
            name, fields = f"replica.{moved}", {"replica": replica}
            fields |= {"reason": reason, "again_in": again_in}
        case GateChanged(state, inside, held, reason, code, replica):
            why = {"reason": reason, "code": code, "replica": replica}
            name, fields = f"gate.{state}", {"inside": inside, "held": held, **why}
        case SourceScanned(cause, error):
            name, fields = "source.scanned", {"cause": cause, "error": error}
        case _:
            name, fields = _rarer(event)
    return {"event": name, **fields}


def _rarer(
    event: ModeChosen
    | Leaving
    | OperatorAsked
    | StateSaved
    | SettingsRead
    | TroubleTold
    | SocketBoundAnew
    | FoldersPassedOver
    | AnswersWithheld
    | LoaderDistrusted
    | LiveVerified
    | LiveDrifted,
) -> tuple[str, Fields]:
    """The name and fields of the rarer events."""
    match event:
        case OperatorAsked(by, wish, refusal):
            more = {"wish": wish, "refusal": refusal}
            name, fields = f"operator.{by.verb}", by_fields(by) | more
        case ModeChosen(mode, why, replica):
            fields = {"mode": mode.value, "why": why, "replica": replica}
            name = "reload.mode"
        case Leaving():
            name, fields = "daemon.stopping", {}
        case StateSaved(error):
            name, fields = "state.not_saved" if error else "state.saved", {"error": error}
        case SettingsRead(changed, waiting, error):
            name = "settings.not_read" if error else "settings.read"
            fields = {"changed": list(changed), "waiting": list(waiting), "error": error}
        case TroubleTold(code, message, todo):
            name = "trouble.began" if message else "trouble.over"
            fields = {"code": code, "message": message, "todo": todo}
        case SocketBoundAnew(path):
            name, fields = "socket.bound_anew", {"path": path}
        case FoldersPassedOver():
            name, fields = "source.passed_over", passed_over_fields(event)
        case _:
            name, fields = _of_weights(event)
    return name, fields


def _of_weights(
    event: AnswersWithheld | LoaderDistrusted | LiveVerified | LiveDrifted,
) -> tuple[str, Fields]:
    """The name and fields of what is found out about live weights."""
    fields: Fields
    match event:
        case AnswersWithheld(generation, answers):
            name, fields = "answers.withheld", {"answers": answers} | generation_fields(generation)
        case LoaderDistrusted(reason, replica):
            name, fields = "loader.distrusted", {"reason": reason, "replica": replica}
        case LiveVerified(generation, replica):
            name, fields = "live.verified", generation_fields(generation) | {"replica": replica}
        case LiveDrifted(generation, _, replica):
            of = generation_fields(generation) | {"replica": replica}
            name, fields = "live.drifted", drift_fields(event) | of
        case _:
            assert_never(event)
    return name, fields


def iso(seconds: float) -> str:
    """Return wall-clock seconds as people and machines both read them, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
