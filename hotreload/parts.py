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
Apply = Callable[[], None]
"""Apply settings that were checked; it cannot fail."""


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


def nothing_to_apply() -> None:
    """Apply settings that change nothing here, or that are read each time."""


async def _nothing_to_check(settings: Settings) -> Apply:
    return nothing_to_apply


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
    prepare: Callable[[Settings], Awaitable[Apply]] = _nothing_to_check
    """Check new settings; ConfigError if the feature cannot use them."""


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

    async def prepare(self, settings: Settings) -> Apply:
        """Have all features check these settings; ConfigError if one of them cannot use them."""
        applies = [await part.prepare(settings) for part in self._parts]

        def apply() -> None:
            for each in applies:
                each()

        return apply
