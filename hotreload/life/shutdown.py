"""The end of a daemon: what it ended by, what is remembered of that, and the exit code."""

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
    """Codes that a supervisor goes by."""

    OK = 0
    FORCED = 1
    NO_DEVICE = 69
    ENGINE_LOST = 70
    BAD_CONFIG = 78


class Shutdown:
    """The first cause counts: what follows from it is no reason of its own."""

    def __init__(
        self,
        entrance: Entrance[Any],
        ledger: Ledger,
        save: Callable[[Ledger], Awaitable[object]],
        *,
        follows: bool,
    ) -> None:
        """`follows`: on this host nothing is decided."""
        self._entrance = entrance
        self._ledger = ledger
        self._save = save
        self._follows = follows
        self.cause: BaseException | None = None

    @property
    def goes_with_rank_0(self) -> bool:
        """True if nothing was lost: rank 0 ended in order, and so does the one that follows it."""
        return self._follows and isinstance(self.cause, RankLeft)

    def lose(self, why: EngineLost) -> None:
        """Let nobody in any more: another host is gone."""
        self.cause = why
        self._entrance.seal(str(why), code="stopping" if self.goes_with_rank_0 else why.code)

    def fail(self, causes: BaseExceptionGroup[Any], code: ExitCode, event: str) -> ExitCode:
        """Let nobody in any more, and say why; return the exit code."""
        cause: Any = self.cause or first_of(causes)  # a rank that left explains what follows
        self.cause = cause
        self._entrance.seal(str(cause), code=getattr(cause, "code", "engine_lost"))
        if self.goes_with_rank_0:
            event = "daemon.leaving_with_rank_0"
        log.critical(event, extra={"cause": str(cause), "exit_code": int(code)})
        return code

    async def end_cleanly(self) -> ExitCode:
        """Remember nothing of what was under way: the end says nothing about its checkpoint."""
        self._ledger.abandon()
        await self._save(self._ledger)
        return ExitCode.OK

    async def settle(self, code: ExitCode, *, is_lost: bool, was_asked: bool) -> ExitCode:
        """Remember a loss for the next life; return the code to exit with.

        A stop that comes while a lost engine is closed must not make it a success.
        """
        if was_asked and isinstance(self.cause, RankLeft):
            return await self.end_cleanly()  # all hosts were asked to stop; another one was quicker
        if code != ExitCode.ENGINE_LOST and not is_lost:
            return code
        if isinstance(self.cause, RankLeft):
            self._ledger.abandon()  # somebody stopped that host: no checkpoint did
        if not self.goes_with_rank_0:
            self._ledger.lost_at = time.time()  # so that the next life can tell of it
        await self._save(self._ledger)
        return ExitCode.ENGINE_LOST
