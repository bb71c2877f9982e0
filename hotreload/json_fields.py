"""The vocabulary as JSON fields: the one spelling that events, log, /status and /history share."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypedDict, cast

from hotreload.attempts import Attempt, By, PassedOver, Refusal
from hotreload.types import Generation, LoadFacts, Reason, Revision

Fields = dict[str, Any]
"""A JSON object."""
SHOWN_LEAVES = 10
"""The most drifted leaves that are named; all of them are counted."""


class RevisionFields(TypedDict):
    """A revision's id, for machines, and its label, for people."""

    revision: str
    label: str


class GenerationFields(TypedDict):
    """A generation, and since when it answers."""

    generation: int
    revision: str
    label: str
    weight_version: str
    fingerprint: str
    live_since: str


class ByFields(TypedDict):
    """The caller of a change, with time and reason, and an address and a route if known."""

    verb: str
    uid: int | None
    pid: int | None
    address: NotRequired[str]
    route: NotRequired[str]
    at: str
    reason: str


class ReasonFields(TypedDict):
    """A reason in words and as a code; nulls when there is none."""

    reason: str | None
    code: str | None
    findings: list[str]


class LoadingFields(TypedDict):
    """The loading of weights; nulls when they were not made of a checkpoint."""

    loader: Literal["own", "upstream"] | None
    loader_reason: str | None
    leaves_staged: int | None
    leaves_shared: int | None
    bytes_read: int | None
    leaves_changed: int | None
    largest_change: float | None
    most_changed: str | None


class OwnAttemptFields(RevisionFields, ReasonFields, LoadingFields):
    """The fields of an attempt, without what its judges found."""

    outcome: str
    phases: Fields
    pause_seconds: float
    finished_at: str
    generation: int | None
    weight_version: str | None
    rolled_back: bool
    by: ByFields | None
    dry_run: bool


class PassedOverFolderFields(TypedDict):
    """A folder that is passed over, and why."""

    label: str
    code: str
    reason: str


class PassedOverFields(TypedDict):
    """The folders that are passed over: some named, all counted."""

    passed_over: list[PassedOverFolderFields]
    passed_over_total: int


NOT_LOADED = cast(LoadingFields, dict.fromkeys(LoadingFields.__annotations__))
"""The fields of what was not made of a checkpoint."""


def iso(seconds: float) -> str:
    """Return wall-clock seconds as people and machines both read them, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def revision_fields(revision: Revision) -> RevisionFields:
    """Return a revision's id, for machines, and its label, for people."""
    return {"revision": revision.id, "label": revision.label}


def generation_fields(generation: Generation) -> GenerationFields:
    """Return a generation as /status shows the live one."""
    return {
        "generation": generation.number,
        **revision_fields(generation.revision),
        "weight_version": generation.weight_version,
        "fingerprint": generation.fingerprint,
        "live_since": iso(generation.since),
    }


def attempt_fields(attempt: Attempt) -> Fields:
    """Return one attempt as status, history and admin answers show it."""
    own: OwnAttemptFields = {
        **revision_fields(attempt.revision),
        "outcome": attempt.outcome.value,
        **reason_fields(attempt.reason),
        "phases": {phase.value: round(spent, 6) for phase, spent in attempt.phases.items()},
        "pause_seconds": round(attempt.pause_seconds, 6),
        "finished_at": iso(attempt.finished_at),
        "generation": attempt.generation,
        "weight_version": attempt.version or None,
        "rolled_back": attempt.rolled_back,
        "by": by_fields(attempt.by) if attempt.by else None,
        **loading_fields(attempt.loading),
        "dry_run": attempt.dry_run,
    }
    return {**own, **attempt.facts}


def round_numbers(value: Any) -> Any:
    """Return it with numbers as exact as anybody reads them."""
    if isinstance(value, dict):
        return {name: round_numbers(each) for name, each in value.items()}
    return round(value, 9) if isinstance(value, float) else value


def by_fields(by: By) -> ByFields:
    """Return the caller of a change, with time and reason, and an address and a route if known."""
    fields: ByFields = {
        "verb": by.verb,
        "uid": by.uid,
        "pid": by.pid,
        "address": by.address,
        "route": by.route,
        "at": iso(by.at),
        "reason": by.reason,
    }
    if not by.address:
        del fields["address"]
    if not by.route:
        del fields["route"]
    return fields


def reason_fields(reason: Reason | None) -> ReasonFields:
    """Return a reason in words and as a code; nulls when there is none."""
    if reason is None:
        return {"reason": None, "code": None, "findings": []}
    return {
        "reason": f"{reason.code}: {reason.message}",
        "code": reason.code,
        "findings": list(reason.findings),
    }


def refusal_fields(refusal: Refusal) -> Fields:
    """Return one refused revision as the status shows it."""
    return {
        **revision_fields(refusal.revision),
        **reason_fields(refusal.reason),
        "at": iso(refusal.at),
    }


def loading_fields(loading: LoadFacts | None) -> LoadingFields:
    """Return how weights were made, as an attempt and the status show it."""
    if loading is None:
        return {**NOT_LOADED}
    change = loading.largest_change
    return {
        "loader": loading.loader,
        "loader_reason": loading.why or None,
        "leaves_staged": loading.leaves_staged,
        "leaves_shared": loading.leaves_shared,
        "bytes_read": loading.bytes_read,
        "leaves_changed": loading.leaves_changed,
        "largest_change": change if math.isfinite(change) else None,  # JSON has no infinity
        "most_changed": loading.most_changed or None,
    }


def folder_fields(folder: PassedOver) -> PassedOverFolderFields:
    """Return a folder that is passed over, and why."""
    return {
        "label": folder.label,
        "code": folder.reason.code,
        "reason": folder.reason.message,
    }


def passed_over_fields(
    folders: tuple[PassedOver, ...], counts: Mapping[str, int]
) -> PassedOverFields:
    """Return the folders as the status and /events show them, and how many there are in all."""
    named = [folder_fields(folder) for folder in folders]
    return {"passed_over": named, "passed_over_total": sum(counts.values())}


def drift_fields(leaves: tuple[str, ...]) -> Fields:
    """Return leaves that are no longer what went live: the first named, all counted."""
    return {"leaves": list(leaves[:SHOWN_LEAVES]), "leaves_total": len(leaves)}
