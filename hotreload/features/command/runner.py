"""Runs the operator's command that decides about new weights, beside the engine that holds them."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotreload.core.judge import Judge
from hotreload.errors import ConfigError
from hotreload.features.command.events import CommandBegan
from hotreload.features.command.evidence import CommandEnd
from hotreload.features.command.judge import CommandJudge
from hotreload.features.command.process import Rights, rights_of, run_command
from hotreload.features.command.settings import CommandSettings
from hotreload.parts import Given
from hotreload.server.candidate_app import create_candidate_app, serve_at_loopback
from hotreload.types import Generation, Lease, Staged

NO_NUMBER = 0
"""The number of weights that are not live, and may never be."""


class CommandRunner:
    """Runs it, and gives it an address where it asks the new weights and the live ones."""

    def __init__(self, given: Given) -> None:
        """ConfigError if the command cannot run as the user of the setting."""
        self._given = given
        self._rights = rights_of(given.settings().of(CommandSettings).user)

    def judges(self) -> Sequence[Judge]:
        """Make the judge of one attempt; none where no command is configured."""
        return [CommandJudge(self.run)] if self._given.settings().of(CommandSettings).run else []

    async def run(self, replica: int, staged: Staged) -> CommandEnd:
        """Run it while these weights answer as a candidate in the engine of this index."""
        command, limits = self._given.settings().of(CommandSettings), self._given.limits
        entrance = self._given.entrance
        lease = entrance.gates[replica].lease
        assert lease is not None, "weights are staged beside live ones"
        candidate = Lease(_not_live(staged), lease.engine, staged)
        token = secrets.token_urlsafe(32)
        app = create_candidate_app(candidate, entrance, limits=limits, token=token)
        name, within = Path(next(iter(command.run), "")).name, command.timeout
        try:
            async with serve_at_loopback(app, limits) as url:
                self._given.attempts.publish(CommandBegan(staged.revision, name, within))
                return await run_command(
                    command.run,
                    env=self._environment(url, token, staged),
                    rights=self._rights,
                    within=within,
                )
        except ConfigError as fault:
            return CommandEnd(None, why=f"has no address where it could ask: {fault}")

    def _environment(self, url: str, token: str, staged: Staged) -> Mapping[str, str]:
        """Return all that it gets: nothing of ours is anybody's business."""
        return {
            **_usual(self._rights),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "HOTRELOAD_CANDIDATE_URL": f"{url}/v1",
            "HOTRELOAD_SOCKET": str(self._given.settings().server.socket.absolute()),
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
