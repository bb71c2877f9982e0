"""The settings of one receiver of notices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, override

from hotreload.setting import REQUIRED, HttpUrl, Location, SettingsOfFeature, setting

Ending = Literal["live", "rolled_back", "rejected", "postponed", "superseded", "lost"]
USUAL_ENDS: Sequence[Ending] = ("live", "rolled_back", "rejected", "lost")


@dataclass(frozen=True, slots=True)
class NotifySettings(SettingsOfFeature):
    """A receiver that gets a POST when an attempt has ended. Repeat the table for more."""

    url: HttpUrl = setting(REQUIRED, "Where to post.", example="https://ops.example.com/hotreload")
    on: tuple[Ending, ...] = setting(
        tuple(USUAL_ENDS),
        "Ends of attempts to post: live, rolled_back, rejected, postponed, superseded, lost.",
    )
    secret_file: Location | None = setting(
        None,
        "File (or systemd credential) of the secret that signs each POST, read each time; unset, "
        "none is signed.",
        example="/etc/hotreload/notify-secret",
    )
    format: Literal["json", "slack"] = setting("json", "json has all facts, slack one sentence.")

    @override
    def with_files(self) -> Self:
        from hotreload.features.notify.signature import read_key
        from hotreload.settings.credentials import are_hidden

        if self.secret_file is not None and not are_hidden():
            read_key(self.secret_file)
        return self
