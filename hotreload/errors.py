"""The error tree. The class says what happens next; the message says what to do.

HotReloadError
├── ConfigError                the operator must change something         exit 78
│   └── AddressTaken           another process has it, and may let go     exit 75
├── CheckpointRejected         never try these bytes again                REJECTED
│   ├── CheckpointCorrupt · CheckpointIncompatible
│   └── Misbehaved             the weights are bad, not their files
│       └── ProbeFailed
├── TryAgain                   nothing wrong with it; later               POSTPONED
│   ├── SourceUnavailable · CheckpointChanged · NotEnoughMemory · DrainTimedOut
├── Superseded                 a newer one is wanted                      SUPERSEDED
├── Recognized                 it is live, or was refused, already        no attempt
├── DeviceUnavailable          the accelerator is busy or absent          exit 69
├── EngineLost                 the live weights are unknown; replace us   LOST, exit 70
├── NotServing                 the gate is sealed or full                 HTTP 503
├── BadRequest                 the caller's words are off                 HTTP 400
│   └── NothingOfThatName      there is no such checkpoint or generation  HTTP 422
├── NotSaved                   a promise a restart would break            HTTP 503
├── NotNewEnough               what answers is older than was asked for   HTTP 409
├── GenerationGone             the weights asked for answer no more       HTTP 409
├── AnswerNonfinite            the weights made NaN of a prompt           HTTP 500
├── Busy                       another change is under way                HTTP 409, exit 4
├── Unreachable · NotReady · TimedOut    of a client of the daemon        exit 3, 6, 5
└── Misused                    the command's arguments make no sense      exit 2
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar, Self

from hotreload.types import Outcome, Reason

MOST_WORDS = 1000
MOST_FINDINGS = 200
"""Bounds on the text of an error that is kept and shown: a file or a client may send megabytes, and
the history keeps many attempts."""


class HotReloadError(Exception):
    """Something we expected can go wrong did; `code` is its name in metrics and answers."""

    code = "error"
    outcome: ClassVar[Outcome | None] = None
    """The outcome of an attempt that this ends; None if it is a fault of ours."""
    exit_code = 1
    """The exit code of a process that this ends."""
    status = 500
    """The HTTP status of a request that this ends."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        findings: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        """`retry_after` is the number of seconds before which another try is in vain, if known."""
        super().__init__(message)
        self.code = code or type(self).code
        self.findings = tuple(findings)
        self.retry_after = retry_after

    @property
    def reason(self) -> Reason:
        """This error as data, for the ledger, the status and the log."""
        findings = tuple(cut(finding, MOST_WORDS) for finding in self.findings[:MOST_FINDINGS])
        return Reason(self.code, cut(str(self), MOST_WORDS), findings)


class ConfigError(HotReloadError):
    """The operator must change something."""

    code = "config"
    exit_code = 78

    @classmethod
    def from_faults(cls, faults: Sequence[str]) -> Self:
        """The error that names all of these faults."""
        if len(faults) == 1:
            return cls(faults[0], findings=faults)
        lines = "".join(f"\n  {fault}" for fault in faults)
        return cls(f"{len(faults)} settings are wrong:{lines}", findings=faults)


class AddressTaken(ConfigError):
    """Another process listens there; once it has ended, a restart helps."""

    code = "address_taken"
    exit_code = 75


class CheckpointRejected(HotReloadError):
    """These bytes are not fit to serve and never will be."""

    code = "rejected"
    outcome = Outcome.REJECTED
    status = 422


class CheckpointCorrupt(CheckpointRejected):
    """The files are damaged."""

    code = "corrupt"


class CheckpointIncompatible(CheckpointRejected):
    """Sound files that do not fit the model that is served."""

    code = "incompatible"


class Misbehaved(CheckpointRejected):
    """Sound weights that do what they must not: that bars the way back to them, too."""


class ProbeFailed(Misbehaved):
    """The weights load, and answer the probes badly."""

    code = "probe"


class TryAgain(HotReloadError):
    """Nothing is wrong with the checkpoint; the moment was."""

    code = "try_again"
    outcome = Outcome.POSTPONED
    status = 503


class NotJudged(TryAgain):
    """A judge of the weights could not judge, which says nothing about them."""

    code = "not_judged"


class SourceUnavailable(TryAgain):
    """The folder or hub does not answer, or does not hold the revision now."""

    code = "source"
    status = 422


class CheckpointChanged(TryAgain):
    """The checkpoint's bytes changed while they were read."""

    code = "changed"


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
    status = 409


class Recognized(HotReloadError):
    """These bytes are live, or were refused, by another name: no attempt was needed."""

    code = "recognized"


class DeviceUnavailable(HotReloadError):
    """The accelerator is held by another process, or is not there; it may come back."""

    code = "no_device"
    exit_code = 69


class EngineLost(HotReloadError):
    """It is unknown which weights are live: seal, stop, and let the supervisor start us again."""

    code = "engine_lost"
    outcome = Outcome.LOST
    exit_code = 70
    status = 503


class RankLeft(EngineLost):
    """Another host of this engine ends, in order: it said so before it went."""


class NotServing(HotReloadError):
    """No request passes now."""

    code = "not_serving"
    status = 503


class BadRequest(HotReloadError):
    """The request cannot be served as asked; nothing was tried. `param` is the field at fault."""

    code = "bad_request"
    status = 400

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


class NothingOfThatName(BadRequest):
    """The operator named a checkpoint or a generation that is not there."""

    code = "unknown_name"
    status = 422


class NotNewEnough(HotReloadError):
    """The generation asked for does not answer, and was waited for in vain."""

    code = "generation_not_live"
    status = 409


class GenerationGone(HotReloadError):
    """The weights that the request names answer no more: asking again is useless."""

    code = "generation_gone"
    status = 409


class NotSaved(HotReloadError):
    """The change was not made: it must survive a restart, and the disk cannot be written."""

    code = "not_saved"
    status = 503


class AnswerNonfinite(HotReloadError):
    """The logits of an answer are no numbers, so there is none: token 0 for ever is no answer."""

    code = "nonfinite_answer"


class Busy(HotReloadError):
    """Another change of the weights is under way, or a pin forbids this one."""

    code = "busy"
    exit_code = 4
    status = 409


# --- what only a client of a daemon, or the command, raises ---------------------------------------


class Unreachable(HotReloadError):
    """No daemon answers there."""

    code = "unreachable"
    exit_code = 3

    def __init__(self, message: str, *, may_come: bool = False) -> None:
        """`may_come` if a daemon may be starting, which does not answer yet."""
        super().__init__(message)
        self.may_come = may_come


class NotReady(HotReloadError):
    """The daemon boots: it answers no request yet, and nothing is wrong."""

    code = "not_ready"
    exit_code = 6


class TimedOut(HotReloadError):
    """The daemon did not answer, or the attempt did not end, in the given time."""

    code = "timed_out"
    exit_code = 5


class Misused(HotReloadError):
    """The command's arguments make no sense."""

    code = "usage"
    exit_code = 2


def show_value(value: object, most: int = 80) -> str:
    """Show a value in the words of a problem: cut, however large it is."""
    return cut(repr(value[: most + 1] if isinstance(value, str | bytes) else value), most)


def cut(text: str, most: int = 80) -> str:
    """A text that long at most, with a mark where it was cut."""
    return text if len(text) <= most else f"{text[:most]}…"


_ALIKE = 0.75
"""The similarity of two names (difflib's ratio) from which one was probably meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, as a question to put behind a fault; else nothing."""
    near = get_close_matches(cut(name), list(known), n=1, cutoff=_ALIKE)
    return f"; did you mean {near[0]}?" if near else ""


PASSED_OVER = (
    "format",
    "no_step",
    "stray",
    "unsafe_path",
    "io",
    "missing",
    "no_marker",
    "too_deep",
    "unfinished",
)
"""Every reason a folder can be passed over for; metrics export each from the start at 0."""


def first_of(failure: BaseException) -> BaseException:
    """The first failure of tasks that failed together."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
