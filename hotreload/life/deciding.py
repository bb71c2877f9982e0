"""The operator's command that decides about new weights, and the address where it asks them."""

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from hotreload.core.entrance import Entrance
from hotreload.errors import ConfigError
from hotreload.events import CommandBegan, Publish
from hotreload.features.command.judge import CommandEnd, RunCommand
from hotreload.features.command.settings import CommandSettings
from hotreload.life.command_process import Rights, rights_of, run_command
from hotreload.life.rereading import Rereading
from hotreload.life.running import RunningEngine
from hotreload.server.candidates import answering_at, create_candidate_app
from hotreload.types import Generation, Lease, Staged

NO_NUMBER = 0
"""The number of weights that are not live, and may never be."""


class Deciding:
    """Runs it beside the engine that holds the weights."""

    def __init__(
        self, rereading: Rereading, entrance: Entrance[RunningEngine], publish: Publish
    ) -> None:
        """ConfigError if it cannot run as the user who is named."""
        self._rereading = rereading
        self._publish = publish
        self._entrance = entrance
        self._rights = rights_of(rereading.settings.of(CommandSettings).user)

    def command(self) -> RunCommand | None:
        """Return what runs it; None where none is configured."""
        return self._run if self._rereading.settings.of(CommandSettings).run else None

    async def _run(self, replica: int, staged: Staged) -> CommandEnd:
        command, limits = self._rereading.settings.of(CommandSettings), self._rereading.limits
        lease = self._entrance.gates[replica].lease
        assert lease is not None, "weights are staged beside live ones"
        candidate = Lease(_not_live(staged), lease.engine, staged)
        token = secrets.token_urlsafe(32)
        app = create_candidate_app(candidate, self._entrance, limits=limits, token=token)
        try:
            async with answering_at(app, limits) as url:
                name, within = Path(next(iter(command.run), "")).name, command.timeout
                self._publish(CommandBegan(staged.revision, name, within))
                return await run_command(
                    command.run,
                    env=self._environment(url, token, staged),
                    rights=self._rights,
                    within=within,
                )
        except ConfigError as fault:
            return CommandEnd(None, why=f"has no address where it could ask: {fault}")

    def _environment(self, url: str, token: str, staged: Staged) -> Mapping[str, str]:
        """All that it is told: nothing of ours is anybody's business."""
        return {
            **_usual(self._rights),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "HOTRELOAD_CANDIDATE_URL": f"{url}/v1",
            "HOTRELOAD_SOCKET": str(self._rereading.settings.server.socket.absolute()),
            "HOTRELOAD_REVISION": staged.revision.id,
            "HOTRELOAD_LABEL": staged.revision.label,
        }


def _usual(rights: Rights | None) -> Mapping[str, str]:
    home = rights.home if rights else os.environ.get("HOME", "/")
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "LANG": "C.UTF-8"}


def _not_live(staged: Staged) -> Generation:
    return Generation(
        NO_NUMBER, staged.revision, staged.fingerprint, time.time(), staged.leaves, staged.bytes
    )
