"""Has each conversation answered by the weights that answered it first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.setting import Seconds, setting

if TYPE_CHECKING:
    from hotreload.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class SessionsSettings:
    """Conversations that go on by the weights they began with."""

    keep: Seconds = setting(
        0.0,
        "How long old weights are kept for the next request of a conversation, unless a "
        "checkpoint needs their room (train.md). 0: off.",
        live=True,
        was="reload.sessions",
    )


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.sessions.sessions import Sessions

    sessions = Sessions(given.settings().of(SessionsSettings).keep)

    def apply(settings: "Settings") -> None:
        sessions.keep = settings.of(SessionsSettings).keep

    return FeatureParts(admission=sessions, apply=apply)


SESSIONS_FEATURE = Feature(name="sessions", settings=SessionsSettings, begin=_begin)
