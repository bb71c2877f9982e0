"""Reports the command that decides now."""

import time
from collections.abc import Callable

from hotreload.core.ledger import Ledger
from hotreload.errors import NotJudged
from hotreload.events import AttemptFinished, Event, PhaseEntered
from hotreload.features.command.evidence import CommandBegan
from hotreload.figures import duration
from hotreload.json_fields import Fields
from hotreload.picture.report import FeatureReport
from hotreload.picture.words import plain


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
