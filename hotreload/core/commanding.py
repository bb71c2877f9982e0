"""Has an operator's command decide about new weights, before they answer anybody.

What it is, and how it is run, the core does not know: only how it ended.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.errors import CheckpointRejected, NotJudged
from hotreload.types import COMMAND, Staged

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


def check_can_ask(who: str, why_not: str | None) -> None:
    """Raise NotJudged where an engine cannot have weights answer beside the live ones."""
    if why_not is not None:
        raise NotJudged(f"[behaviour] {who} cannot judge new weights of this engine: {why_not}")


async def judged(run: RunCommand, replica: Replica[Engine], staged: Staged) -> CommandEnd:
    """Run the command while these weights answer as a candidate; return how it ended."""
    async with replica.engine.as_candidate(staged):
        return await run(replica.index, staged)


def check_end(end: CommandEnd) -> None:
    """Raise why the command refuses the weights, or why it did not judge them."""
    if end.code is None:
        raise NotJudged(f"[behaviour] command {end.why}", findings=end.lines)
    if (why := COULD_NOT_JUDGE.get(end.code)) is not None:
        raise NotJudged(f"[behaviour] command ended with {end.code}, {why}", findings=end.lines)
    if end.code:
        words = f"[behaviour] command ended with {end.code}"
        raise CommandRefused(
            f"{words}: {end.lines[-1]}" if end.lines else words, findings=end.lines
        )
