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
            "How long weights that are not live any more are kept to answer the next request of a "
            "conversation that began with them, since its last one; the headers that name a "
            "conversation are in train.md. A checkpoint that needs their room goes before. 0: "
            "conversations are not looked at.",
            live=True,
            was="reload.sessions",
        ),
    ] = 0.0
