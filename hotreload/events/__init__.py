"""Events, for observers: log, metrics, systemd, status, history and /events.

The events are the public log schema: each has a name, a level and fields. Observers decide nothing,
so one that fails costs a log line and nothing else.
"""

from hotreload.events.daemon import (
    FoldersPassedOver,
    GateChanged,
    LastLifeDied,
    OperatorAsked,
    ReplicaMoved,
    SettingsRead,
    SocketBoundAnew,
    SourceScanned,
    StateSaved,
    StopRequested,
    TroubleNews,
    Warmup,
    WorkerMoved,
)
from hotreload.events.event import Event, Events, Observer, Publish, event_fields
from hotreload.events.reloads import (
    AnswersWithheld,
    AttemptEnd,
    AttemptFinished,
    DryRunFinished,
    GenerationEnded,
    GenerationLive,
    GenerationNamed,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ModeChosen,
    PhaseEntered,
    Progress,
    RevisionWanted,
    Wait,
)
