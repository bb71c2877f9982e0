"""Events, for observers: log, metrics, systemd, status, history and /events.

The events are the public log schema: each has a name, a level and fields. Observers decide nothing,
so one that fails costs a log line and nothing else.
"""

from hotreload.events.event import Event, Events, Observer, Publish, event_fields
from hotreload.events.reloads import (
    AnswersWithheld,
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
    Waiting,
)
from hotreload.events.running import (
    FoldersPassedOver,
    GateChanged,
    Leaving,
    OperatorAsked,
    ReplicaMoved,
    SettingsRead,
    SocketBoundAnew,
    SourceScanned,
    StateSaved,
    TroubleTold,
)

__all__ = [
    "AnswersWithheld",
    "AttemptFinished",
    "DryRunFinished",
    "Event",
    "Events",
    "FoldersPassedOver",
    "GateChanged",
    "GenerationEnded",
    "GenerationLive",
    "GenerationNamed",
    "Leaving",
    "LiveDrifted",
    "LiveVerified",
    "LoaderDistrusted",
    "ModeChosen",
    "Observer",
    "OperatorAsked",
    "PhaseEntered",
    "Progress",
    "Publish",
    "ReplicaMoved",
    "RevisionWanted",
    "SettingsRead",
    "SocketBoundAnew",
    "SourceScanned",
    "StateSaved",
    "TroubleTold",
    "Waiting",
    "event_fields",
]
