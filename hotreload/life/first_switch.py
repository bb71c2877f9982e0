"""The switch of a start: makes an engine with the weights, probes it and lets requests in."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from hotreload.core.attempts import Attempts
from hotreload.core.course import Course
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.rules import FIRST_ANSWER_SECONDS
from hotreload.errors import CheckpointRejected, ProbeFailed
from hotreload.life.running import RunningEngine
from hotreload.types import Checkpoint, Generation, Phase, Staged

log = logging.getLogger("hotreload.boot")

StartEngine = Callable[[Path, Checkpoint | None, Course], Awaitable[RunningEngine]]
"""Make an engine with a model's config and tokenizer and a checkpoint's weights, or random ones.

It tells the course of the attempt what it is at."""


class FirstSwitch:
    """Makes the first weights live; there are none to go back to."""

    def __init__(
        self,
        attempts: Attempts,
        *,
        start_engine: StartEngine,
        go_live: Callable[[RunningEngine, Generation], None],
    ) -> None:
        """`go_live` lets requests in."""
        self.engine: RunningEngine | None = None
        """The engine, once there is one; whoever ends the start closes it."""
        self._attempts = attempts
        self._start_engine = start_engine
        self._go_live = go_live

    async def to(self, course: Course, model: Path, checkpoint: Checkpoint | None) -> None:
        """Start an engine with these weights, prove them, and let requests in."""
        self.engine = engine = await self._start_engine(model, checkpoint, course)
        if checkpoint is not None:  # random weights have no answers to be judged by
            await self._prove(course, engine)
        path = checkpoint.path if checkpoint else None
        course.generation = self._minted(engine.live, path)
        self._go_live(engine, course.generation)

    async def _prove(self, course: Course, engine: RunningEngine) -> None:
        try:
            async with course.phase(Phase.PROBING), asyncio.timeout(FIRST_ANSWER_SECONDS):
                await engine.probe()
        except (CheckpointRejected, TimeoutError) as bad:
            late = f"no answer in {FIRST_ANSWER_SECONDS:g} s"
            course.verdict = bad if isinstance(bad, CheckpointRejected) else ProbeFailed(late)
            raise course.verdict from bad

    def _minted(self, staged: Staged, path: Path | None) -> Generation:
        """Give the weights their old number if they answered last, else a new one."""
        ledger = self._attempts.ledger
        last = ledger.last_good
        if last is not None and ledger.pinned and not _is(last, staged):
            _tell_of_lost_pin(last, staged)
        generation = self._attempts.mint(staged, _number_again(ledger, staged))
        self._attempts.record(generation, path)
        return generation


def _number_again(ledger: Ledger, staged: Staged) -> int | None:
    last = ledger.last_good
    is_newest = last is not None and last.number == ledger.next_number - 1  # or numbers would fall
    return last.number if last is not None and is_newest and _is(last, staged) else None


def _is(past: PastGeneration, staged: Staged) -> bool:
    return (past.revision, past.fingerprint) == (staged.revision, staged.fingerprint)


def _tell_of_lost_pin(pinned: PastGeneration, answers: Staged) -> None:
    """Warn that the pin holds another generation than the one that was pinned."""
    gone = f"generation {pinned.number}, {pinned.revision}, was pinned and could not be started"
    todo = "bring its files back and reload it by name, or unpin"
    fields = {"why": gone, "answers": str(answers.revision), "todo": todo}
    log.error("boot.pin_not_restored", extra=fields)
