"""What is decided about an engine in a program of one's own; each field is a setting's name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotreload.checks.fit import Policy
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.engine.weights.quiet import Quiet
from hotreload.engine.weights.sets import StagingTerms


@dataclass(frozen=True, slots=True)
class HotTerms:
    """What new weights must be like, how they take over, and what is kept of those before."""

    dtype_change: Literal["reject", "cast"] = "reject"
    """Whether weights may have another float dtype than the model's: a trainer's float32."""
    extra_tensors: tuple[str, ...] = ()
    """Patterns of names that may be given though the model has no such tensor."""
    nonfinite: Literal["reject", "allow"] = "reject"
    max_drift: float | None = None
    """By which factor a leaf's root mean square may differ from the live one's."""
    mode: Literal["overlap", "drain"] = "overlap"
    sets: int = 2
    """The most sets of weights on the device."""
    keep_previous: Literal["device", "host", "none"] = "device"
    """Where the weights before the live ones wait for a rollback."""
    memory: Literal["double", "host", "auto"] = "double"
    loader: Literal["auto", "upstream"] = "auto"
    staging_threads: int = 1
    probe_timeout: float = 30.0
    drain_timeout: float = 30.0
    finish_timeout: float = 600.0
    """How long older answers may keep the room that new weights need."""

    @property
    def policy(self) -> Policy:
        """What the checks let pass."""
        return Policy(self.extra_tensors, self.dtype_change, self.nonfinite)

    @property
    def rules(self) -> Rules:
        """How long each step may take, and what is kept after it."""
        return Rules(
            drain_timeout=self.drain_timeout,
            sets=self.sets,
            finish_timeout=self.finish_timeout,
            probe_timeout=self.probe_timeout,
            keep_previous=KeepPrevious(self.keep_previous),
        )

    def staging(self, spool: Path) -> StagingTerms:
        """How weights are loaded: at usual priority, since the caller waits for it."""
        quiet = Quiet(self.staging_threads, "normal")
        return StagingTerms(spool, self.max_drift, self.loader, self.memory, quiet)
