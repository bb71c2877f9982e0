"""Events of the daemon beside its attempts: gates, engines, operators, source, files."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING

from hotreload.attempts import By, PassedOver
from hotreload.events.event import Event
from hotreload.json_fields import Fields, passed_over_fields
from hotreload.types import GateState, ReplicaState

REPLICA_LOST = (
    "nothing at first: the others answer, and it is started again by itself; if it is lost again "
    "and again, look for what `reason` names"
)
WORKER_LOST = (
    "nothing at first: its clients retry, the others answer them, and it is started again by "
    "itself; if it is lost again and again, set [server] workers = 0 and report what `why` says"
)
BY_A_SIGNAL = (
    "the supervisor's log names the signal (journalctl -u hotreload): KILL is kill -9, or memory "
    "that ran out, as the kernel's log says; before SEGV, ABRT and the like stand the stacks"
)
NOT_READ = (
    "mend what `error` names and send SIGHUP again: until then the previous settings stay in force"
)
WANT_A_RESTART = "restart hotreload to go by what `waiting` names too; no request is lost by it"
REMOVED = (
    "find out which process removes it, a cleaner of temporary files perhaps: until it was bound "
    "anew no client could connect; open connections went on"
)


@dataclass(frozen=True, slots=True)
class GateChanged(Event):
    """The gate opened, holds or is sealed; `reason` and `code` say why when it is sealed."""

    state: GateState
    inside: int
    held: int
    reason: str | None = None
    code: str | None = None
    replica: int = 0
    """The engine that it stands before."""

    @property
    def name(self) -> str:
        return f"gate.{self.state}"

    @property
    def level(self) -> int:
        return WARNING if self.state is GateState.SEALED else DEBUG

    def fields(self) -> Fields:
        why = {"reason": self.reason, "code": self.code, "replica": self.replica}
        return {"inside": self.inside, "held": self.held, **why}


@dataclass(frozen=True, slots=True)
class ReplicaMoved(Event):
    """One of several engines starts, serves, or was lost; the others go on."""

    replica: int
    state: ReplicaState
    reason: str | None = None
    """The reason why it was lost, or did not start."""
    again_in: float | None = None
    """After how many seconds it is started again, if it was lost."""

    @property
    def name(self) -> str:
        return f"replica.{self.state}"

    @property
    def level(self) -> int:
        return ERROR if self.state is ReplicaState.LOST else INFO

    @property
    def todo(self) -> str:
        return REPLICA_LOST if self.state is ReplicaState.LOST else ""

    def fields(self) -> Fields:
        return {"replica": self.replica, "reason": self.reason, "again_in": self.again_in}


@dataclass(frozen=True, slots=True)
class WorkerMoved(Event):
    """One of the processes that answer HTTP serves, or was lost; the others go on."""

    worker: int
    is_serving: bool
    why: str | None = None
    """The reason why it was lost."""
    again_in: float | None = None
    """After how many seconds it is started again, if it was lost."""

    @property
    def name(self) -> str:
        return "worker.serving" if self.is_serving else "worker.lost"

    @property
    def level(self) -> int:
        return INFO if self.is_serving else ERROR

    @property
    def todo(self) -> str:
        return "" if self.is_serving else WORKER_LOST

    def fields(self) -> Fields:
        return {"worker": self.worker, "why": self.why, "again_in": self.again_in}


@dataclass(frozen=True, slots=True)
class Warmup(Event):
    """The count of batch sizes that an engine has compiled for, of all that it will."""

    replica: int
    done: int
    total: int
    is_over: bool = False
    """True once it compiles no more."""

    name = "engine.warming"
    level = DEBUG


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """The daemon got a signal to stop; requests inside the gate are still answered."""

    name = "daemon.stopping"


@dataclass(frozen=True, slots=True)
class LastLifeDied(Event):
    """The last daemon with this state folder did not end in order."""

    message: str
    with_machine: bool
    """True if the machine was started again since."""

    name = "daemon.last_life_died"
    level = WARNING

    @property
    def todo(self) -> str:
        return "" if self.with_machine else BY_A_SIGNAL


@dataclass(frozen=True, slots=True)
class SourceScanned(Event):
    """The source looked for checkpoints; `cause` says what made it look (event, rescan …)."""

    cause: str
    error: str | None = None

    name = "source.scanned"

    @property
    def level(self) -> int:
        return WARNING if self.error else INFO


@dataclass(frozen=True, slots=True)
class OperatorAsked(Event):
    """An operator asked for a change; `refusal` is why it is not even tried."""

    by: By
    wish: str | None = None
    """The thing named: a revision, a generation's number, the noise."""
    refusal: str | None = None

    @property
    def name(self) -> str:
        return f"operator.{self.by.verb}"

    @property
    def level(self) -> int:
        return INFO if self.refusal is None else WARNING


@dataclass(frozen=True, slots=True)
class StateSaved(Event):
    """The state file was written, or `error` says why it was not."""

    error: str | None = None

    @property
    def name(self) -> str:
        return "state.not_saved" if self.error else "state.saved"

    @property
    def level(self) -> int:
        return INFO if self.error is None else WARNING


@dataclass(frozen=True, slots=True)
class SettingsRead(Event):
    """The settings were read again; `error` says why nothing of them is gone by."""

    changed: tuple[str, ...] = ()
    """Settings that are in force from now on."""
    waiting: tuple[str, ...] = ()
    """Settings that were changed too, and want a restart."""
    error: str | None = None

    @property
    def name(self) -> str:
        return "settings.not_read" if self.error else "settings.read"

    @property
    def level(self) -> int:
        return INFO if self.error is None and not self.waiting else WARNING

    @property
    def todo(self) -> str:
        if self.error is not None:
            return NOT_READ
        return WANT_A_RESTART if self.waiting else ""


@dataclass(frozen=True, slots=True)
class TroubleNews(Event):
    """A fault that lasts until an operator mends it; without a message it is over."""

    code: str
    """One of `troubles.TROUBLES`, or of a feature."""
    message: str | None
    todo: str = ""
    """Advice on what to do about it."""

    @property
    def name(self) -> str:
        return "trouble.began" if self.message else "trouble.over"

    @property
    def level(self) -> int:
        return INFO if self.message is None else WARNING


@dataclass(frozen=True, slots=True)
class SocketBoundAnew(Event):
    """The unix socket listens again by this name, after its file was removed."""

    path: str

    name = "socket.bound_anew"
    level = WARNING
    todo = REMOVED


@dataclass(frozen=True, slots=True)
class FoldersPassedOver(Event):
    """The folders that are passed over from now on: all of them counted, the newest named."""

    folders: tuple[PassedOver, ...]
    counts: Mapping[str, int]
    """The number of all, by the code of their reason."""

    name = "source.passed_over"
    level = WARNING

    def fields(self) -> Fields:
        return {**passed_over_fields(self.folders, self.counts)}
