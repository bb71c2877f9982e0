"""The settings of conversations."""

from dataclasses import dataclass
from typing import Annotated

from hotreload.setting import Setting
from hotreload.settings.kinds import Seconds


@dataclass(frozen=True, slots=True)
class SessionsSettings:
    """Conversations that go on by the weights they began with."""

    keep: Annotated[
        Seconds,
        Setting(
            "How long old weights are kept for the next request of a conversation, unless a "
            "checkpoint needs their room (train.md). 0: off.",
            live=True,
            was="reload.sessions",
        ),
    ] = 0.0
