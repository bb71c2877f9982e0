"""Events of checkpoints: wishes, attempts, generations, and findings about live weights."""

from dataclasses import dataclass
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Literal

from hotreload.attempts import Attempt
from hotreload.events.event import Event
from hotreload.json_fields import Fields, attempt_fields, drift_fields, generation_fields
from hotreload.types import Generation, Mode, Outcome, Phase, Revision

OUTCOME_LEVELS = {
    Outcome.REJECTED: WARNING,
    Outcome.POSTPONED: WARNING,
    Outcome.LOST: CRITICAL,
}
"""The levels of ends that are no plain information."""
DRAINS_UNASKED = (
    "nothing, if swaps may hold requests until those under way have ended: [reload] mode = "
    "'drain' says that it is meant; otherwise change what `why` names"
)
DISTRUSTED = (
    "nothing: requests are served as before; checkpoints go live through upstream's loader, and "
    "take longer; report this line"
)
DRIFTED = (
    "restart the daemon, which loads the weights anew; then look for faults of the memory of the "
    "device and of this machine (dmesg)"
)


@dataclass(frozen=True, slots=True)
class RevisionWanted(Event):
    """The source or an operator wishes this revision to be live."""

    revision: Revision

    name = "revision.wanted"


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """The present wait of the source, the reconciler or the start, in words; None without."""

    waiting_for: str | None
    who: Literal["source", "reconciler", "start"] = "source"

    @property
    def name(self) -> str:
        return f"{self.who}.waiting"

    @property
    def level(self) -> int:
        return INFO if self.waiting_for else DEBUG

    def fields(self) -> Fields:
        return {"waiting_for": self.waiting_for}


@dataclass(frozen=True, slots=True)
class PhaseEntered(Event):
    """An attempt moved on; None when it is over."""

    revision: Revision
    phase: Phase | None
    replica: int = 0
    """On which engine, if it is done on one."""

    name = "reload.phase"
    level = DEBUG


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """The progress of a phase: bytes that arrived, or batch sizes that were compiled.

    Published a few times a second at most.
    """

    revision: Revision
    phase: Phase
    done: int
    total: int

    name = "reload.progress"


@dataclass(frozen=True, slots=True)
class AttemptEnd(Event):
    """An attempt or a dry run ended; `live` is the generation that answers from now on."""

    attempt: Attempt
    live: Generation | None
    replica: int = 0
    """The engine that it was made on."""

    @property
    def level(self) -> int:
        return OUTCOME_LEVELS.get(self.attempt.outcome, INFO)

    def fields(self) -> Fields:
        live = self.live.number if self.live else None
        return {**attempt_fields(self.attempt), "live": live, "replica": self.replica}


@dataclass(frozen=True, slots=True)
class AttemptFinished(AttemptEnd):
    """An attempt ended that was to go live."""

    @property
    def name(self) -> str:
        return f"reload.{self.attempt.outcome}"


@dataclass(frozen=True, slots=True)
class DryRunFinished(AttemptEnd):
    """A dry run ended; it changed no weights, and refused nothing."""

    name = "reload.dry_run"


@dataclass(frozen=True, slots=True)
class GenerationLive(Event):
    """These weights answer from now on: after the boot, a reload or a rollback."""

    generation: Generation
    replica: int = 0
    """On which engine."""

    name = "generation.live"


@dataclass(frozen=True, slots=True)
class GenerationNamed(Event):
    """The weights that answer are known by another version from now on."""

    generation: Generation

    name = "generation.named"


@dataclass(frozen=True, slots=True)
class GenerationEnded(Event):
    """All requests that began under these weights have been answered."""

    generation: Generation
    replica: int = 0
    """On which engine."""

    name = "generation.ended"


@dataclass(frozen=True, slots=True)
class ModeChosen(Event):
    """The mode of swaps in this life; `why` says why it drains though overlap was asked."""

    mode: Mode
    why: str | None = None
    replica: int = 0

    name = "reload.mode"

    @property
    def level(self) -> int:
        return INFO if self.why is None else WARNING

    @property
    def todo(self) -> str:
        return DRAINS_UNASKED if self.why is not None else ""


@dataclass(frozen=True, slots=True)
class AnswersWithheld(Event):
    """The count of this generation's answers that were withheld: their logits were not finite."""

    generation: Generation
    answers: int

    name = "answers.withheld"
    level = WARNING


@dataclass(frozen=True, slots=True)
class LoaderDistrusted(Event):
    """Our own loader made other weights of a checkpoint than upstream's: it is switched off.

    Until the daemon is restarted every checkpoint goes through upstream's.
    """

    reason: str
    replica: int = 0
    """On which engine."""

    name = "loader.distrusted"
    level = ERROR
    todo = DISTRUSTED


@dataclass(frozen=True, slots=True)
class LiveVerified(Event):
    """The checksums of the live weights were computed again, and are those that went live."""

    generation: Generation
    replica: int = 0
    """On which engine."""

    name = "live.verified"
    level = DEBUG


@dataclass(frozen=True, slots=True)
class LiveDrifted(Event):
    """Live leaves have changed though no attempt changed them.

    This holds until other weights go live, or `LiveVerified` finds them whole again.
    """

    generation: Generation
    leaves: tuple[str, ...]
    replica: int = 0
    """On which engine."""

    name = "live.drifted"
    level = ERROR
    todo = DRIFTED

    def fields(self) -> Fields:
        return {
            **drift_fields(self.leaves),
            **generation_fields(self.generation),
            "replica": self.replica,
        }
