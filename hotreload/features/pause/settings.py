"""The settings of pauses that trainers ask for."""

from dataclasses import dataclass

from hotreload.setting import Seconds, setting

PAUSE_LIMIT = 600.0
"""Seconds after which a pause is over by itself."""


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Pauses that trainers ask for."""

    limit: Seconds = setting(
        PAUSE_LIMIT,
        "The longest pause (POST /pause_generation); then it ends by itself. 0 forbids pauses.",
        live=True,
        was="server.pause_limit",
    )
