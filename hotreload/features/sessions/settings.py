"""The settings of conversations."""

from dataclasses import dataclass

from hotreload.setting import Seconds, setting


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
