"""The switch of a start: makes an engine with the weights, probes it and lets requests in."""

import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from hotreload.attempts import Attempt
from hotreload.core.attempt_records import Attempts
from hotreload.core.judge import (
    ASKED,
    FIRST_ANSWER_SECONDS,
    PASSED,
    NoAnswer,
    ask_probes,
    probe_evidence,
)
from hotreload.core.ledger import Ledger, PastGeneration, ServedBy
from hotreload.core.progress import AttemptProgress
from hotreload.errors import ConfigError, EngineLost
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.model_files import changes
from hotreload.life.start.start_troubles import Doubt
from hotreload.types import Checkpoint, Generation, Phase, Staged

log = logging.getLogger("hotreload.boot")

OTHER_ENGINE = "other_engine"
"""The code of a ConfigError: probes fail, and something else serves the weights than before."""

STARTED_FIELD = 19
"""Of the kernel's, after the name: clock ticks from its boot to the process's beginning."""
StartEngine = Callable[[Path, Checkpoint | None, AttemptProgress], Awaitable[RunningEngine]]
"""Make an engine with a model's config and tokenizer and a checkpoint's weights, or random ones;
publish the progress."""


@dataclass(eq=False)
class FirstSwitch:
    """Makes the first weights live: the steps of an attempt, without older weights to put back."""

    attempts: Attempts
    start_engine: StartEngine
    go_live: Callable[[RunningEngine, Generation], None]
    """Admit requests."""
    served_by: Callable[[Path], Awaitable[ServedBy]]
    """Return what a model's answers depend on now."""
    doubt: Doubt
    engine: RunningEngine | None = None
    """The engine, once it is made; the life of this start closes it."""

    async def to(
        self,
        progress: AttemptProgress,
        model: Path,
        checkpoint: Checkpoint | None,
        instead_of: PastGeneration | None = None,
    ) -> None:
        """Start an engine with these weights, prove them, and admit requests.

        `instead_of` is the generation that should answer and cannot be served.
        """
        ledger = self.attempts.ledger
        if checkpoint is None:  # random weights have no answers to be judged by
            self.engine = engine = await self.start_engine(model, None, progress)
            progress.generation = await self._mint(engine.weights.live, None)
        else:
            by = await self.served_by(model)
            self.engine = engine = await self.start_engine(model, checkpoint, progress)
            await self._prove(progress, engine, by)
            progress.generation = await self._mint(engine.weights.live, checkpoint.path)
            ledger.served_by, ledger.missed = by, instead_of
        self.go_live(engine, progress.generation)

    async def _prove(self, progress: AttemptProgress, engine: RunningEngine, by: ServedBy) -> None:
        """Ask the probes; weights that were live before are never refused for their answers.

        If nothing else has changed since, only the beginning of each answer is awaited, and whole
        answers are asked once these weights serve.
        """
        ledger, live = self.attempts.ledger, engine.weights.live
        past = ledger.was_live_as(live.revision, live.fingerprint)
        is_proven = past is not None and ledger.served_by == by
        async with progress.phase(Phase.PROBING):
            verdict = await ask_probes(engine, FIRST_ANSWER_SECONDS, briefly=is_proven)
        progress.note(probe_evidence(ASKED if verdict else PASSED))
        if verdict is None:
            if past is not None and is_proven:
                self.doubt.whether(past)
            return
        if past is None:
            progress.verdict = verdict
            raise verdict
        if ledger.served_by is not None and ledger.served_by != by:
            raise _another_engine(past, verdict, changes(ledger.served_by, by)) from verdict
        if isinstance(verdict, NoAnswer):
            raise EngineLost(f"{verdict}, by weights that answered before: {past.revision}")
        await engine.switch.scrub()  # a nonfinite answer may have left NaN in the cache
        self.doubt.of(past, verdict)

    async def _mint(self, staged: Staged, path: Path | None) -> Generation:
        """Give the weights their old number if they answered last, else a new one."""
        ledger = self.attempts.ledger
        last = ledger.last_good
        if last is not None and ledger.pinned and not _is(last, staged):
            _tell_of_lost_pin(ledger.held_by, last, staged)
        past = ledger.was_live_as(staged.revision, staged.fingerprint)
        version = past.version if past is not None else ""
        number = _number_again(ledger, staged)
        if number is None:  # nothing else could answer in their place
            await self.attempts.secure_number(at_any_rate=True)
        generation = self.attempts.mint(staged, number, version=version)
        self.attempts.record_live(generation, path)
        return generation


def _another_engine(past: PastGeneration, verdict: Exception, what: str) -> ConfigError:
    """Blame neither the weights nor the probe: what they are served by is another."""
    return ConfigError(
        f"{verdict}; generation {past.number}, {past.revision}, passed before, and is served by "
        f"something else now: {what}. Go back to that; or, if the answers are good, correct the "
        "[[probe]]",
        code=OTHER_ENGINE,
    )


def _number_again(ledger: Ledger, staged: Staged) -> int | None:
    last = ledger.last_good
    is_newest = last is not None and last.number == ledger.next_number - 1  # or numbers would fall
    return last.number if last is not None and is_newest and _is(last, staged) else None


def _is(past: PastGeneration, staged: Staged) -> bool:
    return (past.revision, past.fingerprint) == (staged.revision, staged.fingerprint)


def _tell_of_lost_pin(held_by: str, pinned: PastGeneration, answers: Staged) -> None:
    """Warn that the pin holds another generation than the one that was pinned."""
    what = f"generation {pinned.number}, {pinned.revision}"
    gone = f"{what}, was held by {held_by} and could not be started"
    todo = "bring its files back and reload it by name, or unpin"
    fields = {"why": gone, "answers": str(answers.revision), "todo": todo}
    log.error("boot.pin_not_restored", extra=fields)


def log_first_answer(attempt: Attempt) -> None:
    """Log how long requests had to wait, and for which phases."""
    phases = {phase.value: round(took, 3) for phase, took in attempt.phases.items()}
    log.info("boot.answers", extra={"seconds": round(seconds_since_exec(), 3), **phases})


def seconds_since_exec() -> float:
    """Return the seconds since this process began, imports included; 0 where unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    began = int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
