"""Where the daemon's parts meet: stand-ins for what the boot makes, and what the server shows."""

from dataclasses import dataclass
from typing import Any

from hotreload.errors import NotServing
from hotreload.events import Event
from hotreload.observe.history import Fields, History, attempt_fields
from hotreload.observe.status import Status
from hotreload.types import Attempt, Generation


class Later:
    """Stands for a part that the boot makes; to use it before says so."""

    def __init__(self) -> None:
        self._part: Any = None

    def arrive(self, part: Any) -> None:
        """From now on this is that part; None when it is gone again."""
        self._part = part

    def get(self, name: str, default: Any) -> Any:
        """An attribute of the part; `default` while there is none."""
        return getattr(self._part, name) if self._part is not None else default

    def __getattr__(self, name: str) -> Any:
        if self._part is None:
            raise NotServing("the engine is starting", code="booting", retry_after=2)
        return getattr(self._part, name)


@dataclass(frozen=True, slots=True)
class View:
    """What the server shows of the observers."""

    _status: Status
    _history: History

    def status(self) -> Fields:
        """Everything /status says."""
        return self._status.snapshot()

    def ready(self) -> tuple[bool, list[str]]:
        """Whether requests are answered, and why not."""
        return self._status.ready()

    def history(self) -> list[Fields]:
        """Attempts, newest first."""
        return self._history.attempts()

    def leaves(self) -> Fields:
        """Everything /leaves says."""
        return self._status.leaves()

    def attempt(self, attempt: Attempt) -> Fields:
        """One attempt, as in the history."""
        return attempt_fields(attempt)

    def event(self, event: Event) -> Fields:
        """One event, its name under `event`."""
        return self._status.event(event)

    def live(self) -> Generation | None:
        """Who answers; None while booting."""
        return self._status.live
