"""The door for judges of new weights, beside the probes, which the kernel asks itself.

A judge is made for each attempt. It is asked once, on the first engine, where the new weights wait
beside the live ones and no request is answered by them. What decides nothing it puts off until the
new weights are live (`Case.once_live`). On the way back to earlier weights there is no judge.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from hotreload.core.engines.replica import Replica
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress
from hotreload.errors import CheckpointRejected, NotJudged
from hotreload.types import Staged

OnceLive = Callable[[], Awaitable[None]]
"""Do what decides nothing; a cancel ends it."""


@dataclass(frozen=True, slots=True)
class Case:
    """New weights beside the live ones of an engine, and the attempt to have them answer."""

    replica: Replica[Engine]
    live: Staged
    """The weights that answer before the attempt."""
    staged: Staged
    progress: AttemptProgress
    is_dry_run: bool
    once_live: list[OnceLive] | None
    """Work to be done once `staged` is live, while both sets are there (`FollowUp`).

    None where that cannot be: in a dry run, and where one set answers at a time.
    """


class Judge(Protocol):
    """Judges the new weights of one attempt."""

    @property
    def takes_long(self) -> bool:
        """True if a newer wish ends the attempt as long as this judge has not ended."""

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged if it must judge, and cannot on this engine: then nothing is loaded."""

    def watch(self) -> AbstractContextManager[None]:
        """Watch from before anything is staged until the attempt ends."""

    async def judge(self, case: Case) -> None:
        """Raise CheckpointRejected if the weights are bad, or TryAgain if that could not be seen.

        A cancel ends it early.
        """


MakeJudges = Callable[[], Sequence[Judge]]
"""Make the judges of one attempt, in their order, by the settings that are in force."""


def no_judges() -> Sequence[Judge]:
    """Leave all to the probes."""
    return ()


def check_can_ask(setting: str, why_not: str | None) -> None:
    """Raise NotJudged where an engine cannot have weights answer beside the live ones."""
    if why_not is not None:
        raise NotJudged(f"{setting} cannot judge new weights of this engine: {why_not}")


@contextmanager
def watch_with(judges: Sequence[Judge]) -> Iterator[None]:
    """Have all of them watch."""
    with ExitStack() as watching:
        for judge in judges:
            watching.enter_context(judge.watch())
        yield


async def ask_judge(judge: Judge, case: Case) -> None:
    """Ask one judge; its verdict stands, though a cancel comes after it."""
    try:
        await judge.judge(case)
    except CheckpointRejected as bad:
        case.progress.verdict = bad
        raise
