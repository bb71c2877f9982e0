"""Has an operator's command decide about new weights, before they answer any request.

The command runs beside the engine that holds them, and asks them at an address of its own.
"""

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from hotreload.core.judge import Case, Judge, check_can_ask
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Engine
from hotreload.errors import ConfigError, Misbehaved, NotJudged
from hotreload.events import AttemptFinished, Event, PhaseEntered
from hotreload.feature import Given
from hotreload.features.command.command import (
    COMMAND,
    COULD_NOT_JUDGE,
    CommandBegan,
    CommandEnd,
    CommandSettings,
    evidence_of,
)
from hotreload.features.command.process import Rights, rights_of, run_command
from hotreload.figures import duration
from hotreload.json_fields import Fields
from hotreload.picture.report import FeatureReport
from hotreload.picture.words import plain
from hotreload.server.candidate_app import create_candidate_app, serve_at_loopback
from hotreload.types import Generation, Lease, Phase, Staged

NO_NUMBER = 0
"""The number of weights that are not live, and may never be."""
RunCommand = Callable[[int, Staged], Awaitable[CommandEnd]]
"""Run the command while weights answer as a candidate in the engine of this index.

A cancel ends it.
"""


class CommandRefused(Misbehaved):
    """The operator's command does not want these weights."""

    code = COMMAND


class CommandJudge:
    """The command of one attempt."""

    takes_long = True
    watch = nullcontext[None]
    """Nothing is done meanwhile: the command begins when its turn comes."""

    def __init__(self, run: RunCommand) -> None:
        """`run` runs the command."""
        self._run = run

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where the command could ask this engine nothing."""
        check_can_ask("[command] run", engine.switch.cannot_overlap)

    async def judge(self, case: Case) -> None:
        """Run the command while the weights answer it, and no client; a no raises why."""
        async with case.progress.phase(Phase.COMPARING):
            async with case.replica.engine.unseen.as_candidate(case.staged):
                end = await self._run(case.replica.index, case.staged)
            case.progress.note(evidence_of(end))
            check_end(end)


def check_end(end: CommandEnd) -> None:
    """Raise why the command refuses the weights, or why it did not judge them."""
    if end.code is None:
        raise NotJudged(f"[command] run {end.why}", findings=end.lines)
    if (why := COULD_NOT_JUDGE.get(end.code)) is not None:
        raise NotJudged(f"[command] run ended with {end.code}, {why}", findings=end.lines)
    if end.code:
        words = f"[command] run ended with {end.code}"
        raise CommandRefused(
            f"{words}: {end.lines[-1]}" if end.lines else words, findings=end.lines
        )


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


class CommandReport(FeatureReport):
    """Reports the command of the attempt under way."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        """`ledger` knows how many tries before this one the command did not judge."""
        self._ledger, self._clock = ledger, clock
        self._began: CommandBegan | None = None
        self._since = 0.0

    def observe(self, event: Event) -> None:
        """Take in that it begins, and that its phase is over."""
        match event:
            case CommandBegan():
                self._began, self._since = event, self._clock()
            case PhaseEntered() | AttemptFinished():
                self._began = None

    def attempt_fields(self) -> Fields:
        """Return the command that decides now, and its deadline; None without one."""
        if (began := self._began) is None:
            return {"command": None}
        command = {
            "name": began.command,
            "within": began.within,
            "seconds": round(self._clock() - self._since, 3),
            "try": 1 + self._ledger.in_a_row(began.revision, NotJudged.code),
        }
        return {"command": command}

    def at_work(self, attempt: Fields) -> str | None:
        """Say which command decides, for how long, and how often it was tried."""
        if (command := attempt["command"]) is None:
            return None
        times = f"for {duration(command['seconds'])} of {duration(command['within'])} at most"
        program = f"[command] run ({plain(command['name'])})"
        return f"{program} decides, {times}, try {command['try']}"
