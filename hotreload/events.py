"""What happened, for observers: log, metrics, systemd, status, history and /events.

The union of the frozen dataclasses here is the public log schema. Observers decide nothing,
so one that fails costs a log line and nothing else.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hotreload.types import (
    Attempt,
    By,
    GateState,
    Generation,
    Mode,
    PassedOver,
    Phase,
    ReplicaState,
    Revision,
)


@dataclass(frozen=True, slots=True)
class RevisionWanted:
    """The source or an operator wishes this revision to be live."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the source, the reconciler or the start waits for, in words; None when for nothing."""

    waiting_for: str | None
    who: Literal["source", "reconciler", "start"] = "source"


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """An attempt moved on; None when it is over."""

    revision: Revision
    phase: Phase | None
    replica: int = 0
    """On which engine, if it is done on one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of a phase's bytes have arrived, or of its batches are compiled while it warms.

    Published a few times a second at most.
    """

    revision: Revision
    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """An attempt ended; `live` is what answers from now on."""

    attempt: Attempt
    live: Generation | None
    replica: int = 0
    """Which engine it was made on."""


@dataclass(frozen=True, slots=True)
class DryRunFinished:
    """A dry run ended; nothing that answers has changed, and nothing is refused because of it."""

    attempt: Attempt
    live: Generation | None
    replica: int = 0


@dataclass(frozen=True, slots=True)
class GenerationLive:
    """These weights answer from now on: after the boot, a reload or a rollback."""

    generation: Generation
    replica: int = 0
    """On which engine."""


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """Nobody is answered by these weights any more: all who began under them have their answer."""

    generation: Generation
    replica: int = 0
    """On which engine."""


@dataclass(frozen=True, slots=True)
class ModeChosen:
    """How weights are exchanged in this life; `why` says why they drain though it was not asked."""

    mode: Mode
    why: str | None = None
    replica: int = 0


@dataclass(frozen=True, slots=True)
class GateChanged:
    """The gate opened, holds or is sealed; `reason` and `code` say why when it is sealed."""

    state: GateState
    inside: int
    held: int
    reason: str | None = None
    code: str | None = None
    replica: int = 0
    """Which engine it stands before."""


@dataclass(frozen=True, slots=True)
class ReplicaMoved:
    """One of several engines starts, serves, or was lost; the others go on."""

    replica: int
    state: ReplicaState
    reason: str | None = None
    """Why it was lost, or why it did not start."""
    again_in: float | None = None
    """After how many seconds it is started again, if it was lost."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The daemon was told to stop; who is inside the gate is still answered."""


@dataclass(frozen=True, slots=True)
class SourceScanned:
    """The source looked for checkpoints; `cause` says what made it look (event, rescan …)."""

    cause: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """An operator asked for a change; `refusal` is why it is not even tried."""

    by: By
    wish: str | None = None
    """What was named: a revision, a generation's number, the noise."""
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The state file was written, or `error` says why it was not."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsRead:
    """The settings were read again; `error` says why nothing of them is gone by."""

    changed: tuple[str, ...] = ()
    """What is gone by from now on."""
    waiting: tuple[str, ...] = ()
    """What was changed too, and wants a restart."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TroubleTold:
    """Something is wrong and stays so until somebody mends it; no message when it is over."""

    code: str
    """One of `troubles.TROUBLES`."""
    message: str | None
    todo: str = ""
    """What somebody can do about it."""


@dataclass(frozen=True, slots=True)
class SocketBoundAnew:
    """The unix socket listens again by this name: somebody had removed it."""

    path: str


@dataclass(frozen=True, slots=True)
class FoldersPassedOver:
    """The folders that are passed over from now on: all of them counted, the newest named."""

    folders: tuple[PassedOver, ...]
    counts: Mapping[str, int]
    """How many there are in all, by the code of their reason."""


@dataclass(frozen=True, slots=True)
class AnswersWithheld:
    """How many answers of this generation were withheld because their logits were no numbers."""

    generation: Generation
    answers: int


@dataclass(frozen=True, slots=True)
class LoaderDistrusted:
    """Our own loader made other weights of a checkpoint than upstream's: it is switched off.

    Until the daemon is started anew every checkpoint goes through upstream's.
    """

    reason: str
    replica: int = 0
    """On which engine."""


@dataclass(frozen=True, slots=True)
class LiveVerified:
    """The checksums of the live weights were computed anew, and are those that went live."""

    generation: Generation
    replica: int = 0
    """On which engine."""


@dataclass(frozen=True, slots=True)
class LiveDrifted:
    """These live leaves are no longer what went live, though nobody exchanged them.

    It holds until other weights go live, or `LiveVerified` says that they are whole again.
    """

    generation: Generation
    leaves: tuple[str, ...]
    replica: int = 0
    """On which engine."""


Event = (
    RevisionWanted
    | Waiting
    | PhaseEntered
    | Progress
    | AttemptFinished
    | DryRunFinished
    | GenerationLive
    | GenerationEnded
    | ModeChosen
    | GateChanged
    | ReplicaMoved
    | Leaving
    | SourceScanned
    | OperatorAsked
    | StateSaved
    | SettingsRead
    | TroubleTold
    | SocketBoundAnew
    | FoldersPassedOver
    | AnswersWithheld
    | LoaderDistrusted
    | LiveVerified
    | LiveDrifted
)
Observer = Callable[[Event], None]
Publish = Callable[[Event], None]


class Events:
    """Hands every event to every observer, in order, on the caller's thread."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; the returned call takes it out again."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def publish(self, event: Event) -> None:
        """Tell everybody; a fault in an observer never reaches the one who publishes."""
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception:
                logging.getLogger("hotreload.events").exception("events.observer_failed")
