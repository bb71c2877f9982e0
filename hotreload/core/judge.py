"""The interface of judges of new weights; the kernel itself asks the probes.

A judge is made for each attempt. The attempt asks each judge once, on the first engine, while the
new weights wait beside the live ones and answer no request. A judge puts off work that decides
nothing until the new weights are live (`Case.once_live`). A rollback has no judges.
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
"""Work that decides nothing; a cancel ends the work."""


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
    """Work to do once `staged` is live, while both sets are in memory (`FollowUp`).

    None where that is impossible: in a dry run, and where one set answers at a time.
    """


class Judge(Protocol):
    """Judges the new weights of one attempt."""

    @property
    def takes_long(self) -> bool:
        """True if a newer wish may end the attempt while this judge is at work."""

    def check_can_judge(self, engine: Engine) -> None:
        """Raise NotJudged, before anything is loaded, if it must judge and cannot here."""

    def watch(self) -> AbstractContextManager[None]:
        """Watch requests from before anything is staged until the attempt ends."""

    async def judge(self, case: Case) -> None:
        """Raise CheckpointRejected if the weights are bad, or TryAgain if the judge could not see
        that.

        A cancel ends the judge early.
        """


MakeJudges = Callable[[], Sequence[Judge]]
"""Make the judges of one attempt, in their order, by the settings now in force."""


def no_judges() -> Sequence[Judge]:
    """Return no judges: the probes alone decide."""
    return ()


def check_can_ask(setting: str, why_not: str | None) -> None:
    """Raise NotJudged where an engine cannot have weights answer beside the live ones."""
    if why_not is not None:
        raise NotJudged(f"{setting} cannot judge new weights of this engine: {why_not}")


@contextmanager
def watch_with(judges: Sequence[Judge]) -> Iterator[None]:
    """Have all these judges watch for the length of the block."""
    with ExitStack() as watching:
        for judge in judges:
            watching.enter_context(judge.watch())
        yield


async def ask_judge(judge: Judge, case: Case) -> None:
    """Ask one judge and keep its verdict, even if a cancel comes after it."""
    try:
        await judge.judge(case)
    except CheckpointRejected as bad:
        case.progress.verdict = bad
        raise
