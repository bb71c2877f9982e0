"""The error tree. The class says what happens next; the message says what to do.

HotReloadError
├── ConfigError                the operator must change something         exit 78
├── CheckpointRejected         never try these bytes again                REJECTED
│   ├── CheckpointCorrupt · CheckpointIncompatible · ProbeFailed
├── TryAgain                   nothing wrong with it; later               POSTPONED
│   ├── SourceUnavailable · NotEnoughMemory · DrainTimedOut
├── Superseded                 a newer one is wanted                      SUPERSEDED
├── DeviceUnavailable          the accelerator is busy or absent          exit 69
├── EngineLost                 nobody knows what is live; replace us      LOST, exit 70
├── NotServing                 the gate is sealed or full                 HTTP 503
├── BadRequest                 the caller's words are off                 HTTP 400
├── NotNewEnough               what answers is older than was asked for   HTTP 409
└── Busy                       another change is under way                HTTP 409
"""

from collections.abc import Sequence
from typing import ClassVar

from hotreload.types import Outcome, Reason


class HotReloadError(Exception):
    """Something we expected can go wrong did; `code` is its name in metrics and answers."""

    code = "error"
    outcome: ClassVar[Outcome | None] = None
    """What becomes of an attempt that this ends; None where it is a fault of ours."""

    def __init__(self, message: str, *, code: str | None = None, findings: Sequence[str] = ()):
        super().__init__(message)
        self.code = code or type(self).code
        self.findings = tuple(findings)

    @property
    def reason(self) -> Reason:
        """This error as data, for the ledger, the status and the log."""
        return Reason(self.code, str(self), self.findings)


class ConfigError(HotReloadError):
    """The operator must change something."""

    code = "config"


class CheckpointRejected(HotReloadError):
    """These bytes are not fit to serve and never will be."""

    code = "rejected"
    outcome = Outcome.REJECTED


class CheckpointCorrupt(CheckpointRejected):
    """The files are damaged, or changed under our hands."""

    code = "corrupt"


class CheckpointIncompatible(CheckpointRejected):
    """Sound files that do not fit the model that is served."""

    code = "incompatible"


class ProbeFailed(CheckpointRejected):
    """Loaded and live for a moment, and the answers were bad."""

    code = "probe"


class TryAgain(HotReloadError):
    """Nothing is wrong with the checkpoint; the moment was. `retry_after`: not before so long."""

    code = "try_again"
    outcome = Outcome.POSTPONED

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        findings: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, findings=findings)
        self.retry_after = retry_after


class SourceUnavailable(TryAgain):
    """The folder or hub does not answer, or does not hold the revision now."""

    code = "source"


class NotEnoughMemory(TryAgain):
    """No room for a second set of weights now."""

    code = "oom"


class DrainTimedOut(TryAgain):
    """Requests under way did not end within the drain deadline."""

    code = "drain"


class Superseded(HotReloadError):
    """A newer revision is wanted, so this one is let go."""

    code = "superseded"
    outcome = Outcome.SUPERSEDED


class DeviceUnavailable(HotReloadError):
    """The accelerator is held by another process, or is not there; it may come back."""

    code = "no_device"


class EngineLost(HotReloadError):
    """Nobody knows what is live: seal, stop, and let the supervisor start us anew."""

    code = "engine_lost"
    outcome = Outcome.LOST


class NotServing(HotReloadError):
    """No request passes now; `retry_after` says when to ask again, if ever."""

    code = "not_serving"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class BadRequest(HotReloadError):
    """The request cannot be served as asked; nothing was tried. `param` is the field at fault."""

    code = "bad_request"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        findings: Sequence[str] = (),
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code, findings=findings)
        self.param = param


class NotNewEnough(HotReloadError):
    """The generation asked for does not answer, and was waited for in vain."""

    code = "generation_not_live"


class Busy(HotReloadError):
    """Another change of the weights is under way, or a pin forbids this one."""

    code = "busy"


REJECTIONS = (
    "truncated",
    "bad_header",
    "index",
    "duplicate",
    "missing",
    "extra",
    "shape",
    "dtype",
    "config_mismatch",
    "tokenizer_mismatch",
    "nonfinite",
    "zeros",
    "drift",
    "changed",
    "digest",
    "io",
    "unsafe_path",
    "incompatible",
    "probe",
    "crashed",
    "rolled_back",
    "internal",
)
"""Every reason a revision can be refused for; metrics export each from the start at 0."""
