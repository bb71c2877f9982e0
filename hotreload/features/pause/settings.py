"""The settings of pauses that trainers ask for."""

from dataclasses import dataclass
from typing import Annotated

from hotreload.setting import Setting
from hotreload.settings.kinds import Seconds

PAUSE_LIMIT = 600.0
"""Seconds after which a pause is over by itself."""


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Pauses that trainers ask for."""

    limit: Annotated[
        Seconds,
        Setting(
            "The longest pause (POST /pause_generation); then it ends by itself. 0 forbids pauses.",
            live=True,
            was="server.pause_limit",
        ),
    ] = PAUSE_LIMIT
