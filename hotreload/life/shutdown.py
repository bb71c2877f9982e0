"""The shutdown of a daemon: its cause, the facts saved of it, and the exit code."""

import logging
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any

from hotreload.core.ledger import Ledger
from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import EngineLost, RankLeft, first_of

log = logging.getLogger("hotreload")


class ExitCode(IntEnum):
    """Exit codes that a supervisor acts on."""

    OK = 0
    FORCED = 1
    NO_DEVICE = 69
    ENGINE_LOST = 70
    BAD_CONFIG = 78


class Shutdown:
    """Records the first cause of the shutdown; later errors follow from it."""

    def __init__(
        self,
        entrance: Entrance[Any],
        ledger: Ledger,
        save: Callable[[Ledger], Awaitable[object]],
        *,
        follows: bool,
    ) -> None:
        """`follows`: True on a host that decides nothing."""
        self._entrance = entrance
        self._ledger = ledger
        self._save = save
        self._follows = follows
        self.cause: BaseException | None = None

    @property
    def goes_with_rank_0(self) -> bool:
        """True if rank 0 stopped in order, and this rank stops with it."""
        return self._follows and isinstance(self.cause, RankLeft)

    def lose(self, why: EngineLost) -> None:
        """Seal the gates: another host is gone."""
        self.cause = why
        self._entrance.seal(str(why), code="stopping" if self.goes_with_rank_0 else why.code)

    def fail(self, causes: BaseExceptionGroup[Any], code: ExitCode, event: str) -> ExitCode:
        """Seal the gates, log the cause, and return the exit code."""
        cause: Any = self.cause or first_of(causes)  # a rank that left explains what follows
        self.cause = cause
        self._entrance.seal(str(cause), code=getattr(cause, "code", "engine_lost"))
        if self.goes_with_rank_0:
            event = "daemon.leaving_with_rank_0"
        log.critical(event, extra={"cause": str(cause), "exit_code": int(code)})
        return code

    async def end_cleanly(self) -> ExitCode:
        """End in order: the end says nothing about the checkpoint under way."""
        self._ledger.abandon()
        await self._save(self._ledger)
        return ExitCode.OK

    async def settle(self, code: ExitCode, *, is_lost: bool, was_asked: bool) -> ExitCode:
        """Save a loss for the next start; return the exit code.

        A stop that comes while a lost engine is closed must not make it a success.
        """
        if was_asked and isinstance(self.cause, RankLeft):
            return await self.end_cleanly()  # all hosts were asked to stop; another was quicker
        if code != ExitCode.ENGINE_LOST and not is_lost:
            return code
        if isinstance(self.cause, RankLeft):
            self._ledger.abandon()  # an operator stopped that host: no checkpoint did
        if not self.goes_with_rank_0:
            self._ledger.lost_at = time.time()  # the next start reports it
        await self._save(self._ledger)
        return ExitCode.ENGINE_LOST
