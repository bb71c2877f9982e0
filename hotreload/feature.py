"""One feature beside the kernel: what a daemon gives to it, and the parts that it gives back.

This module imports nothing heavy.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotreload.attempts import Evidence, ReasonWords
from hotreload.events import Event
from hotreload.picture.report import FeatureReport
from hotreload.picture.words import WordAttempt

if TYPE_CHECKING:
    from hotreload.core.attempt_records import Attempts
    from hotreload.core.engines.background import Leave
    from hotreload.core.judge import Judge, MakeJudges
    from hotreload.core.way_in.admission import Admission, Listener
    from hotreload.core.way_in.entrance import Entrance
    from hotreload.server.ports import FeatureRoutes
    from hotreload.server_limits import Limits
    from hotreload.settings.sections import Settings

Task = Callable[[], Coroutine[Any, Any, None]]
"""A background task; it runs as long as an engine serves, and its error ends the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Everything of a daemon that one feature may use."""

    settings: "Callable[[], Settings]"
    """Return the settings in force."""
    limits: "Limits"
    """Limits on requests, always the ones in force."""
    entrance: "Entrance[Any]"
    engines: Callable[[], Sequence[Any]]
    """List the engines that serve."""
    attempts: "Attempts"
    """The record of attempts, with its clocks and `publish` for events."""
    leave: "Leave"
    """Roll back from harmful weights in this feature's name."""


def _apply_nothing(settings: "Settings") -> None:
    """Ignore settings that change nothing here, or that are read each time."""


def _see_nothing(event: Event) -> None:
    """Ignore the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureParts:
    """All parts of one feature in one daemon."""

    judges: "MakeJudges" = tuple
    """Make the judges of one attempt; by default there are none."""
    listeners: "Sequence[Listener]" = ()
    admission: "Admission | None" = None
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Background tasks by name."""
    observe: Callable[[Event], None] = _see_nothing
    """Receive each event, after the log and the status."""
    report: FeatureReport | None = None
    routes: "FeatureRoutes | None" = None
    apply: "Callable[[Settings], None]" = _apply_nothing
    """Apply new settings; it cannot fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature. The kernel knows none; without a feature's line in the list the rest is
    unchanged."""

    name: str
    """The name of its table in the settings, and of its evidence."""
    settings: type[Any] | None = None
    """The table's class, a plain frozen dataclass; None where it has no settings."""
    blank: Evidence | None = None
    """The feature's evidence in an attempt that did not ask the feature."""
    words: WordAttempt | None = None
    """Puts the facts of the feature's evidence into words; without it the evidence's own words are
    used."""
    reasons: ReasonWords = field(default_factory=dict)
    """The feature's refusals by their code, which metrics export at 0 from the start."""
    begin: Callable[[Given], FeatureParts]
    """Make the feature's parts for a daemon; heavy modules are imported here."""


class AllFeatures:
    """The parts of all features of a daemon, in the order of the list."""

    def __init__(self, parts: Sequence[FeatureParts]) -> None:
        self._parts = tuple(parts)
        self.listeners = [each for part in parts for each in part.listeners]
        self.observers = [part.observe for part in parts]
        self.admissions = [part.admission for part in parts if part.admission is not None]
        self.routes = [part.routes for part in parts if part.routes is not None]
        self.reports = [part.report for part in parts if part.report is not None]
        self.tasks = {name: task for part in parts for name, task in part.tasks.items()}

    def judges(self) -> "Sequence[Judge]":
        """Make the judges of one attempt, by the settings in force."""
        return [judge for part in self._parts for judge in part.judges()]

    def apply(self, settings: "Settings") -> None:
        """Have all features apply these settings."""
        for part in self._parts:
            part.apply(settings)
