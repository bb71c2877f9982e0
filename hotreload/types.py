"""The vocabulary. Imports nothing of ours; everything else may import this."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of the weights; equal ids mean the same bytes."""

    id: str
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """A folder's name may hold bytes that are no text; a label goes into logs and JSON."""
        text = self.label.encode(errors="backslashreplace").decode()
        object.__setattr__(self, "label", text)

    def __str__(self) -> str:
        return f"{self.label} ({self.id[:12]})" if self.label else self.id[:12]


@dataclass(frozen=True, slots=True)
class Noise:
    """Gaussian noise on some leaves; on equal weights equal noise gives equal weights."""

    seed: int = 0
    scale: float = 0.01
    """The standard deviation of what is added to every element."""
    num_leaves: int = 3


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's shape and its dtype in safetensors' spelling (`BF16`, `F32`).

    `shape` is None where an engine can name a tensor but not say what shape its file has.
    """

    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file whose bytes were checked; staging loads it only while the digest still holds."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Lies on local disk and passed every check; only `checks` makes one."""

    revision: Revision
    path: Path
    files: tuple[CheckpointFile, ...]
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    bytes: int


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine serves, as a checkpoint must match it to be loadable by a leaf swap."""

    tensors: Mapping[str, TensorSpec] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    tokenizer: Mapping[str, str] = field(repr=False)
    """File name to digest, of the tokenizer the engine booted with."""
    ignorable: frozenset[str] = frozenset()
    """Names a file may hold though the engine loads none of them (tied weights)."""


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A whole set of weights, held by the engine; only `Engine.stage` and `exchange` make one."""

    revision: Revision
    weights: Any = field(repr=False)
    fingerprint: str
    leaves: Mapping[str, int] = field(repr=False)
    """Each leaf's checksum by its path, at most 2**53 so that a gauge holds it exactly."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What answers requests: the n-th set of weights that went live in this server's history."""

    number: int
    revision: Revision
    fingerprint: str
    since: float
    """Wall-clock seconds; for people, never for durations."""
    leaves: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    bytes: int = field(default=0, repr=False, compare=False)


class Phase(StrEnum):
    """Where an attempt stands."""

    FETCHING = "fetching"
    VALIDATING = "validating"
    STAGING = "staging"
    DRAINING = "draining"
    SWAPPING = "swapping"
    PROBING = "probing"
    ROLLING_BACK = "rolling_back"


class Outcome(StrEnum):
    """How an attempt ended; also the metric label."""

    LIVE = "live"
    REJECTED = "rejected"
    POSTPONED = "postponed"
    SUPERSEDED = "superseded"
    LOST = "lost"


class GateState(StrEnum):
    """Open: requests pass. Holding: they wait, bounded. Sealed: 503."""

    OPEN = "open"
    HOLDING = "holding"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was refused or put off: a word for machines, sentences for people."""

    code: str
    message: str
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to make a revision live, and what came of it."""

    revision: Revision
    outcome: Outcome
    reason: Reason | None
    phases: Mapping[Phase, float]
    pause_seconds: float
    finished_at: float
    generation: int | None = None
    rolled_back: bool = False
    fingerprints: tuple[str, str] | None = None
    """Of what was live before and after it, if it went live."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A revision that is not tried again until its bytes change or an operator forces it."""

    revision: Revision
    reason: Reason
    at: float
