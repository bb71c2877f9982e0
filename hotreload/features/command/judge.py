"""Has an operator's command decide about new weights, before they answer any request.

How the command is run is not known here: only how it ended.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from hotreload.core.judge import Case, check_can_ask
from hotreload.core.ports import Engine
from hotreload.errors import CheckpointRejected, NotJudged
from hotreload.types import COMMAND, Evidence, Phase, Staged

BLANK = Evidence("command", facts={"command_said": []})
"""The evidence of a command that was not asked."""
LINES_IN_WORDS = 3
"""So many lines of a command its evidence tells of in words."""
COULD_NOT_JUDGE = {
    75: "which asks to be tried again later",
    126: "which says that it may not be run",
    127: "which says that it was not found",
}
"""Exit codes that say nothing about weights: EX_TEMPFAIL, and two that shells give."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of a command that was to judge weights."""

    code: int | None
    """Its exit code; None if it gave none."""
    lines: tuple[str, ...] = ()
    """The last lines that it wrote."""
    why: str = ""
    """The reason why it gave no exit code."""


RunCommand = Callable[[int, Staged], Awaitable[CommandEnd]]
"""Run the command while weights answer as a candidate in the engine of this index.

A cancel ends it.
"""


class CommandRefused(CheckpointRejected):
    """The operator's command does not want these weights."""

    code = COMMAND


class CommandJudge:
    """The command of one attempt."""

    takes_long = True

    def __init__(self, run: RunCommand) -> None:
        """`run` runs the command."""
        self._run = run

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where the command could ask this engine nothing."""
        check_can_ask("[command] run", engine.cannot_overlap)

    def watching(self) -> AbstractContextManager[None]:
        """Do nothing: the command begins when its turn comes."""
        return nullcontext()

    async def judge(self, case: Case) -> None:
        """Run the command while the weights answer it, and no client; a no raises why."""
        async with case.progress.phase(Phase.COMPARING):
            async with case.replica.engine.as_candidate(case.staged):
                end = await self._run(case.replica.index, case.staged)
            case.progress.note(evidence_of(end))
            check_end(end)


def evidence_of(end: CommandEnd) -> Evidence:
    """Return what the end of the command says of the weights."""
    has_judged = end.code is not None and end.code not in COULD_NOT_JUDGE
    outcome = ("refused" if end.code else "passed") if has_judged else "not_judged"
    words = f"the command said: {' / '.join(end.lines[-LINES_IN_WORDS:])}" if end.lines else ""
    return Evidence(BLANK.name, outcome, words, {"command_said": [*end.lines]})


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
