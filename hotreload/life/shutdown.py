"""The end of a daemon: its cause, the facts saved of it, the exit code; and how the last one ended.

A start that dies while it reads compiled programs would die again each time: the next leaves them
out.
"""

import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.core.ledger import Ledger
from hotreload.core.way_in.entrance import Entrance
from hotreload.engine.compile_cache import JAX_VARIABLE, leave_out
from hotreload.errors import EngineLost, RankLeft, first_of
from hotreload.events import LastLifeDied
from hotreload.json_fields import iso
from hotreload.life.saved.state_lock import DeadLife, LifeStage
from hotreload.life.start.start_engine import compile_cache_of
from hotreload.settings.sections import Settings

log = logging.getLogger("hotreload")


FORCED = 1
"""The exit code of a daemon that was asked to stop a second time."""


@dataclass(eq=False)
class Shutdown:
    """Records the first cause of the shutdown; later errors follow from it."""

    entrance: Entrance[Any]
    ledger: Ledger
    save: Callable[[Ledger], Awaitable[object]]
    follows: bool
    """True on a host that decides nothing."""
    cause: BaseException | None = None

    @property
    def goes_with_rank_0(self) -> bool:
        """True if rank 0 stopped in order, and this rank stops with it."""
        return self.follows and isinstance(self.cause, RankLeft)

    def lose(self, why: EngineLost) -> None:
        """Seal the gates: another host is gone."""
        self.cause = why
        self.entrance.seal(str(why), code="stopping" if self.goes_with_rank_0 else why.code)

    def fail(self, causes: BaseExceptionGroup[Any], code: int, event: str) -> int:
        """Seal the gates, log the cause, and return the exit code."""
        cause: Any = self.cause or first_of(causes)  # a rank that left explains what follows
        self.cause = cause
        self.entrance.seal(str(cause), code=getattr(cause, "code", "engine_lost"))
        if self.goes_with_rank_0:
            event = "daemon.leaving_with_rank_0"
        log.critical(event, extra={"cause": str(cause), "exit_code": code})
        return code

    async def end_cleanly(self) -> int:
        """End in order: the end says nothing about the checkpoint under way."""
        self.ledger.abandon()
        await self.save(self.ledger)
        return 0

    async def settle(self, code: int, *, is_lost: bool, was_asked: bool) -> int:
        """Save a loss for the next start; return the exit code.

        A stop that comes while a lost engine is closed must not make it a success.
        """
        if was_asked and isinstance(self.cause, RankLeft):
            return await self.end_cleanly()  # all hosts were asked to stop; another was quicker
        if code != EngineLost.exit_code and not is_lost:
            return code
        if isinstance(self.cause, RankLeft):
            self.ledger.abandon()  # an operator stopped that host: no checkpoint did
        if not self.goes_with_rank_0:
            self.ledger.lost_at = time.time()  # the next start reports it
        await self.save(self.ledger)
        return EngineLost.exit_code


# --- how the last life ended ----------------------------------------------------------------------

HOW_IT_ENDED = "ended"
"""The file in systemd's state folder that says how the last process of the service ended."""


def make_last_life_event(died: DeadLife, ledger: Ledger, settings: Settings) -> LastLifeDied:
    """Make the event of the earlier life; if it died at its start, leave its programs out."""
    live = ledger.generations[-1] if ledger.generations else None
    what = "with the machine" if died.with_machine else f"by {_signal_of(died)}"
    words = [f"the daemon before this one (pid {died.pid}) ended {what}"]
    if died.stage is LifeStage.STARTING:
        words.append("before its start was over")
    if live is not None:
        words.append(f"generation {live.number}, {live.revision}, was live last")
    words.append(f"its last sign of life was at {iso(died.seen)}")
    if died.stage is LifeStage.STARTING and not died.with_machine:
        words += _left_out(settings)
    return LastLifeDied("; ".join(words), died.with_machine)


def _signal_of(died: DeadLife) -> str:
    """Name the signal, where systemd wrote it down (`ExecStopPost=`)."""
    with suppress(OSError, ValueError):
        ended = Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0], HOW_IT_ENDED)
        _, signal, result = ended.read_text(errors="replace").split()
        if ended.stat().st_mtime >= died.seen:
            return f"SIG{signal} ({result})"
    return "a signal"


def _left_out(settings: Settings) -> list[str]:
    """Leave out the compiled programs that it may have died of, and say so."""
    if cache := compile_cache_of(settings):
        left = leave_out(cache)
        return [f"what it had compiled is left out, and lies in {left}"] if left else []
    place = os.environ.get(JAX_VARIABLE)
    todo = "if starts end like this again, remove what lies there"
    return [f"compiled programs are read from {place} ({JAX_VARIABLE}): {todo}"] if place else []
