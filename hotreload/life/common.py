"""The parts of a daemon that both who decides what is live and who follows him work with."""

from collections.abc import Callable
from dataclasses import dataclass

from hotreload.core.entrance import Entrance
from hotreload.core.ports import Source
from hotreload.core.recording import Attempts
from hotreload.core.rules import Rules
from hotreload.events import Publish
from hotreload.life.checking import Checking
from hotreload.life.doubt import Doubt
from hotreload.life.files_gone import FilesGone
from hotreload.life.gone import Gone
from hotreload.life.joints import Arrival
from hotreload.life.rereading import Rereading
from hotreload.life.running import RunningEngine
from hotreload.life.state import StateFile
from hotreload.settings.load import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Made by the daemon, once a life."""

    settings: Settings
    rereading: Rereading
    source: Source
    checking: Checking
    attempts: Attempts
    rules: Rules
    state: StateFile
    entrance: Entrance[RunningEngine]
    arrival: Arrival
    doubt: Doubt
    gone: Gone
    files_gone: FilesGone
    publish: Publish
    take_signals: Callable[[], None]
    """After an engine is started: XLA installs a handler for SIGTERM."""
