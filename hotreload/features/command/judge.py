"""Has an operator's command decide about new weights, before they answer any request.

How the command is run is not known here: only how it ended.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from hotreload.core.judge import Case, check_can_ask
from hotreload.core.ports import Engine
from hotreload.errors import Misbehaved, NotJudged
from hotreload.features.command.evidence import COMMAND, COULD_NOT_JUDGE, CommandEnd, evidence_of
from hotreload.types import Phase, Staged

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

    def __init__(self, run: RunCommand) -> None:
        """`run` runs the command."""
        self._run = run

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged where the command could ask this engine nothing."""
        check_can_ask("[command] run", engine.cannot_overlap)

    def watch(self) -> AbstractContextManager[None]:
        """Do nothing: the command begins when its turn comes."""
        return nullcontext()

    async def judge(self, case: Case) -> None:
        """Run the command while the weights answer it, and no client; a no raises why."""
        async with case.progress.phase(Phase.COMPARING):
            async with case.replica.engine.as_candidate(case.staged):
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
