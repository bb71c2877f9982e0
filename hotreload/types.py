"""The vocabulary. Imports nothing of ours; everything else may import this."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict

IN_MEMORY = "the mapping"
"""The name of tensors in memory in the place of a file's name; no file has it."""
NOISY = "perturbed-"
"""The ids of noisy revisions begin with this; no id of a source does."""
UNREAD = "unread-"
"""The prefix of ids of files that were not read yet: such an id is made from a stat."""

FOR_A_SWAP = "swap"
"""The code in the finish reason of an answer that was ended early for a swap: ask again."""
AS_ASKED = "asked"
"""The same code for an answer that its client ended (`POST /abort_request`)."""


def as_text(name: str) -> str:
    """Return a file's name for people: bytes that are no text are escaped."""
    return name.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of the weights; equal ids mean the same bytes."""

    id: str
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Escape bytes that are no text in the label, which goes into logs and JSON."""
        object.__setattr__(self, "label", as_text(self.label))

    @property
    def is_unread(self) -> bool:
        """True if the id was made from a stat: staging reads the content."""
        return self.id.startswith(UNREAD)

    @property
    def is_noise(self) -> bool:
        """True if an operator put noise on weights to make it."""
        return self.id.startswith(NOISY)

    def __str__(self) -> str:
        return f"{self.label} ({self.id[:12]})" if self.label else self.id[:12]


@dataclass(frozen=True, slots=True)
class Noise:
    """Gaussian noise on some leaves; on equal weights equal noise gives equal weights."""

    seed: int = 0
    scale: float = 0.01
    """The standard deviation of the noise added to every element."""
    num_leaves: int = 3


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's dtype (`BF16`, `F32`) and its shape, None where the engine does not know it."""

    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file whose bytes were checked; staging refuses it if its digest has changed since."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """The place of a tensor's bytes in a file, and the digest they had when they were checked."""

    file: str
    begin: int
    """Counted from the file's first byte, not from where its data begins."""
    end: int
    digest: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, on disk or in memory, that passed every check; only `checks` makes one."""

    revision: Revision
    path: Path
    files: tuple[CheckpointFile, ...]
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    bytes: int
    held: Mapping[str, TensorBytes] = field(repr=False)
    """The bytes of each tensor by its name: their place, and their digest as checked, if read."""
    memory: Any = field(default=None, repr=False, compare=False)
    """The `InMemory` that holds its one file where no disk does; `path` means nothing then."""
    is_part: bool = False
    """True if it lacks tensors that the model needs: these stay as they are live."""
    first_read: Any = field(default=None, repr=False, compare=False)
    """The `FirstRead` that checks the files' bytes while they are loaded; None if they were checked
    before."""

    @property
    def as_read(self) -> "Checkpoint":
        """The same with all that its first reading found, once that is over."""
        return (self.first_read and self.first_read.found) or self

    @property
    def is_unread(self) -> bool:
        """True if only names, shapes and dtypes were checked: the loader checks the values."""
        return self.memory is not None and bool(self.memory.is_unread)

    @property
    def weight_files(self) -> tuple[CheckpointFile, ...]:
        """The weights and their index: all that an engine takes of a checkpoint."""
        return tuple(file for file in self.files if holds_weights(file.name))


def holds_weights(name: str) -> bool:
    """True if a file of this name is a shard or the index; the rest are side files."""
    return ".safetensors" in name or name == IN_MEMORY


@dataclass(frozen=True, slots=True)
class Served:
    """The served model, as far as a checkpoint must match it to be loadable by a leaf swap."""

    tensors: Mapping[str, TensorSpec] = field(repr=False)
    """None while only the side files of the model are known."""
    config: Mapping[str, Any] = field(repr=False)
    side_files: Mapping[str, str] = field(repr=False)
    """Digests of the side files the engine booted with (tokenizer, template …), by file name."""
    ignorable: frozenset[str] = frozenset()
    """Patterns of names a file may hold though the engine loads none of them (tied weights)."""


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """The way a set of weights was made of a checkpoint, and how it differs from the live one."""

    loader: Literal["own", "upstream"]
    """`own`, or `upstream` for what our own does not understand."""
    why: str = ""
    """The reason why it was not our own."""
    leaves_staged: int = 0
    leaves_shared: int = 0
    """Leaves whose tensors have the same bytes as the live ones: both sets hold the same array."""
    bytes_read: int = 0
    leaves_changed: int = 0
    largest_change: float = 0.0
    """The root mean square of a leaf's change, over that of the live leaf."""
    most_changed: str = ""
    """The leaf of the largest change."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine by requests; the tokens are those of the pool that serves."""

    waiting: int = 0
    running: int = 0
    kv_requests: int = 0
    """Tokens that requests hold."""
    kv_prefixes: int = 0
    """Tokens of cached prefixes, which are given back when requests need them."""
    kv_free: int = 0
    page_size: int = 1
    """Tokens in a page of the pool."""


@dataclass(frozen=True, slots=True)
class Shares:
    """In which part of their turns weights compute that are not the live ones, beside others."""

    shadow: float
    """For those that are being proven, while clients are answered."""
    fading: float
    """The least for older ones that still answer; more as they answer as many as others do."""
    prove_within: float | None
    """Seconds that a proof is to take, for which its share grows, up to 1; None: it does not."""

    def times_as_long(self, seconds: float) -> float:
        """Return the factor by which a proof of so many seconds may take longer beside clients.

        Once its share has grown to 1, each step of it waits for one of theirs.
        """
        return 1 / self.shadow if self.prove_within is None else 2 + self.prove_within / seconds


@dataclass(frozen=True, slots=True)
class HowFar:
    """The progress of long work: in bytes, or in batches if batches are compiled."""

    done: int
    of: int


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A whole set of weights, held by the engine; only `engine` makes one."""

    revision: Revision
    weights: Any = field(repr=False)
    fingerprint: str
    leaves: Mapping[str, int] = field(repr=False)
    """Each leaf's checksum by its path, at most 2**53 so that a gauge holds it exactly."""
    bytes: int
    loading: LoadFacts | None = None
    """None for what was not made of a checkpoint: what an engine started with, and noise."""


class StampFields(TypedDict):
    """The generation that made an answer."""

    generation: int
    revision: str
    fingerprint: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class Generation:
    """The n-th set of weights that went live in this server's history: it answers requests."""

    number: int
    revision: Revision
    fingerprint: str
    since: float
    """Wall-clock seconds; for people, never for durations."""
    leaves: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    bytes: int = field(default=0, repr=False, compare=False)
    version: str = field(default="", compare=False)
    """The version given by the caller that ordered these weights; empty for none."""

    @property
    def weight_version(self) -> str:
        """The version by which trainers know these weights: theirs, else as they are numbered."""
        return self.version or str(self.number)

    @property
    def stamp(self) -> StampFields:
        """The fields of an answer that say which generation made it."""
        return {
            "generation": self.number,
            "revision": self.revision.id,
            "fingerprint": self.fingerprint,
            "weight_version": self.weight_version,
        }


@dataclass(frozen=True, slots=True)
class Lease[E]:
    """The weights and the engine that answer a request, from its first token to its last."""

    generation: Generation
    engine: E
    weights: Staged | None = None
    """The generation's weights in that engine; None where it answers by one set at a time."""


@dataclass(frozen=True, slots=True)
class AnsweringGeneration:
    """A generation that answers requests now, and how many."""

    generation: Generation
    requests: int


class Mode(StrEnum):
    """The way in which new weights take over from those that answer."""

    OVERLAP = "overlap"
    """New requests are answered by the new ones at once; those under way end under the old."""
    DRAIN = "drain"
    """Requests are held until those under way have ended, and the weights are exchanged."""


class Phase(StrEnum):
    """The step of an attempt."""

    FETCHING = "fetching"
    VALIDATING = "validating"
    STAGING = "staging"
    BUILDING = "building"
    """Only in a start: the engine is made, with the weights."""
    WARMING = "warming"
    """Only in a start: what the first requests need is compiled."""
    DRAINING = "draining"
    SWAPPING = "swapping"
    PROBING = "probing"
    COMPARING = "comparing"
    ROLLING_BACK = "rolling_back"


class Outcome(StrEnum):
    """The end of an attempt; also the metric label."""

    LIVE = "live"
    PASSED = "passed"
    """A dry run: it would have gone live."""
    REJECTED = "rejected"
    POSTPONED = "postponed"
    SUPERSEDED = "superseded"
    LOST = "lost"


class ReplicaState(StrEnum):
    """The state of one of the daemon's engines."""

    STARTING = "starting"
    SERVING = "serving"
    LOST = "lost"
    """The engine answers no request; it is started again, while others serve."""


class GateState(StrEnum):
    """Open: requests pass. Holding: they wait, bounded. Sealed: 503."""

    OPEN = "open"
    HOLDING = "holding"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a refusal or a delay: a word for machines, sentences for people."""

    code: str
    message: str
    findings: tuple[str, ...] = ()
