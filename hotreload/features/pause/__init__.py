"""Holds the requests that come while a trainer asks for a pause."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.setting import Seconds, setting

if TYPE_CHECKING:
    from hotreload.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Pauses that trainers ask for."""

    limit: Seconds = setting(
        600.0,
        "The longest pause (POST /pause_generation); then it ends by itself. 0 forbids pauses.",
        live=True,
        was="server.pause_limit",
    )


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.pause.pause import Pause, PauseReport
    from hotreload.features.pause.routes import pause_routes

    pause = Pause(
        given.attempts.publish,
        look_again=given.entrance.look_again,
        hold_arrivals=given.settings().reload.while_closed == "hold",
    )

    def go_by(settings: "Settings") -> None:
        pause.limit, pause.max_held = settings.of(PauseSettings).limit, settings.reload.max_held

    go_by(given.settings())
    return FeatureParts(
        admission=pause,
        routes=pause_routes(pause),
        report=PauseReport(lambda: pause.held),
        apply=go_by,
    )


PAUSE_FEATURE = Feature(name="pause", settings=PauseSettings, begin=_begin)
