"""The settings of pauses that trainers ask for."""

from dataclasses import dataclass
from typing import Annotated

from hotreload.core.rules import PAUSE_LIMIT
from hotreload.setting import Setting
from hotreload.settings.kinds import Seconds


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Pauses that trainers ask for."""

    limit: Annotated[
        Seconds,
        Setting(
            "How long a pause that somebody asked for (POST /pause_generation) may hold those who "
            "come: after that it is over by itself. 0 forbids pauses.",
            live=True,
            was="server.pause_limit",
        ),
    ] = PAUSE_LIMIT
