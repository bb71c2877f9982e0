"""The things that a daemon gives to a feature, and the parts that a feature gives back."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.background import Leave
from hotreload.core.judge import Judge, MakeJudges, no_judges
from hotreload.core.way_in.admission import Admission, Listener
from hotreload.core.way_in.entrance import Entrance
from hotreload.events import Event
from hotreload.picture.report import FeatureReport
from hotreload.server.ports import FeatureRoutes
from hotreload.server_limits import Limits
from hotreload.settings.sections import Settings

Task = Callable[[], Coroutine[Any, Any, None]]
"""A background task; it runs as long as an engine serves, and its error ends the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Everything of a daemon that one feature may use."""

    settings: Callable[[], Settings]
    """Return the settings in force."""
    limits: Limits
    """Limits on requests, always the ones in force."""
    entrance: Entrance[Any]
    engines: Callable[[], Sequence[Any]]
    """List the engines that serve."""
    attempts: Attempts
    """The record of attempts, with its clocks and `publish` for events."""
    leave: Leave
    """Roll back from harmful weights in this feature's name."""


async def _accept(settings: Settings) -> None:
    """Accept all settings."""


def _apply_nothing(settings: Settings) -> None:
    """Ignore settings that change nothing here, or that are read each time."""


def _see_nothing(event: Event) -> None:
    """Ignore the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureParts:
    """All parts of one feature in one daemon."""

    judges: MakeJudges = no_judges
    """Make the judges of one attempt."""
    listeners: Sequence[Listener] = ()
    admission: Admission | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Background tasks by name."""
    observe: Callable[[Event], None] = _see_nothing
    """Receive each event, after the log and the status."""
    report: FeatureReport | None = None
    routes: FeatureRoutes | None = None
    check: Callable[[Settings], Awaitable[None]] = _accept
    """Check new settings; ConfigError if the feature cannot use them."""
    apply: Callable[[Settings], None] = _apply_nothing
    """Apply settings that all features have checked; it cannot fail."""


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

    def judges(self) -> Sequence[Judge]:
        """Make the judges of one attempt, by the settings in force."""
        return [judge for part in self._parts for judge in part.judges()]

    async def check(self, settings: Settings) -> None:
        """Have all features check these settings; ConfigError if one of them cannot use them."""
        for part in self._parts:
            await part.check(settings)

    def apply(self, settings: Settings) -> None:
        """Have all features apply these settings, which they have checked."""
        for part in self._parts:
            part.apply(settings)
