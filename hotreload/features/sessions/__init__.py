"""Has each conversation answered by the weights that answered it first."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.sessions.settings import SessionsSettings

if TYPE_CHECKING:
    from hotreload.parts import Apply, FeatureParts, Given
    from hotreload.settings.sections import Settings


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.sessions.sessions import Sessions
    from hotreload.parts import FeatureParts

    sessions = Sessions(given.settings().of(SessionsSettings).keep)

    async def prepare(settings: "Settings") -> "Apply":
        def apply() -> None:
            sessions.keep = settings.of(SessionsSettings).keep

        return apply

    return FeatureParts(admission=sessions, prepare=prepare)


SESSIONS_FEATURE = Feature(name="sessions", settings=SessionsSettings, begin=_begin)
