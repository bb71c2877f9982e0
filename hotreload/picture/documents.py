"""The types of the documents of /status and /leaves."""

from typing import TypedDict

from hotreload.json_fields import ByFields, Fields, LoadingFields, PassedOverFields
from hotreload.picture.history import AttemptFields
from hotreload.picture.picture import Rank
from hotreload.picture.replicas import IntegrityFields
from hotreload.picture.surroundings import SettingsFields, StateFileFields
from hotreload.picture.under_way import BootFields
from hotreload.types import GateState, Mode


class AnsweringFields(TypedDict):
    """A generation that answers requests now, and how many."""

    generation: int
    requests: int


class GateFields(TypedDict):
    """The gate before the engines, and the requests inside it and held by it."""

    state: GateState
    inside: int
    held: int


class ReloadStatusFields(TypedDict):
    """The live weights, the wanted ones, and how far they are."""

    state: str
    generation: int | None
    mode: Mode | None
    answering: list[AnsweringFields]
    wanted: str | None
    waiting_for: str | None
    phase: str | None
    last_attempt: AttemptFields | None


class StatusFields(ReloadStatusFields, IntegrityFields, PassedOverFields):
    """The live weights, the wanted ones, the attempt under way, and all that may be wrong."""

    revision: str | None
    label: str | None
    weight_version: str | None
    fingerprint: str | None
    live_since: str | None
    loading: LoadingFields | None
    noise: bool
    mode_reason: str | None
    gate: GateFields
    replicas: list[Fields]
    rank: Rank | None
    boot: BootFields | None
    refused: list[Fields]
    pinned: bool
    pin: ByFields | None
    overruled: ByFields | None
    state_file: StateFileFields
    settings: SettingsFields


class LeavesFields(TypedDict):
    """Checksums of the live leaves, and which of them moved."""

    generation: int | None
    fingerprint: str | None
    leaves: Fields
    changed: list[str]
    previous: Fields | None
