"""Judges new weights: the kernel's own probes, and the interface of all other judges.

A judge is made for each attempt. The attempt asks each judge once, on the first engine, while the
new weights wait beside the live ones and answer no request. A judge puts off work that decides
nothing until the new weights are live (`Case.once_live`); `FollowUps` does it beside requests. A
rollback has no judges.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from hotreload.attempts import PROBE, Evidence
from hotreload.core.engines.replica import Replica
from hotreload.core.ports import Engine
from hotreload.core.progress import AttemptProgress
from hotreload.errors import CheckpointRejected, EngineLost, NotJudged, ProbeFailed, TryAgain
from hotreload.threads import run_to_end
from hotreload.types import Lease, Staged

log = logging.getLogger("hotreload.follow_up")

# --- the probes ----------------------------------------------------------------------------------

FIRST_ANSWER_SECONDS = 900.0
"""The first answer compiles the model, which takes minutes on an accelerator."""


ASKED, PASSED = "asked", "passed"
"""The outcomes of the probes; ASKED until they are passed."""


class NoAnswer(ProbeFailed):
    """The probes got no answer in time; first suspect the engine, not the weights."""


def probe_evidence(outcome: str) -> Evidence:
    """Make the evidence of probes that were asked."""
    return Evidence(PROBE, outcome, facts={"unproven": None})


def unproven_evidence(why: str) -> Evidence:
    """Make the evidence of probes that could not be asked."""
    return Evidence(PROBE, "unproven", why, {"unproven": why})


@asynccontextmanager
async def limit_probes(seconds: float, setting: str = "") -> AsyncIterator[None]:
    """Give the probes of this block so long; no answer in time is a bad answer.

    `setting` names the setting that gives them longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        longer = f" ({setting})" if setting else ""
        raise NoAnswer(f"no answer to the probe within {seconds:g} s{longer}") from None


async def ask_probes(
    engine: Engine, within: float, setting: str = "", *, briefly: bool = False
) -> CheckpointRejected | None:
    """Ask the live weights the probes; return the verdict on bad answers, or None.

    `briefly` asks for the beginning of each answer alone.
    """
    try:
        async with limit_probes(within, setting):
            await engine.unseen.probe(briefly=briefly)
    except (EngineLost, TryAgain):
        raise
    except Exception as bad:
        return as_verdict(bad)
    return None


def as_verdict(bad: Exception) -> CheckpointRejected:
    """Return why the weights are rejected; any error of a probe counts as a bad answer."""
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")


# --- judges ---------------------------------------------------------------------------------------

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


# --- work that judges have put off ---------------------------------------------------------------


@dataclass(eq=False)
class FollowUp:
    """The work left of one attempt, on the engine whose weights were judged."""

    case: Case
    held: Lease[Any] | None = None
    """The lease of the weights of before, while this holds them."""

    @property
    def replica(self) -> Replica[Any]:
        """The engine that the work runs on."""
        return self.case.replica

    def hold(self) -> None:
        """Hold the weights that are live now, just before the flip."""
        if self.case.once_live and self.held is None:
            self.held = self.replica.gate.lease
            assert self.held is not None, "what answers has a lease"
            self.replica.gate.keep(self.held, self)

    def release(self) -> None:
        """Release the weights of before."""
        held, self.held = self.held, None
        if held is not None:
            self.replica.gate.unkeep(held, self)


class FollowUps:
    """Does the work left of attempts, for one attempt at a time."""

    def __init__(self, save: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """`save` writes the findings to disk."""
        self._save = save
        self._under_way: FollowUp | None = None
        self._task: asyncio.Task[None] | None = None

    def go_on_with(self, follow_up: FollowUp, *, is_live: bool) -> None:
        """Start the work left of an ended attempt, if its weights are live."""
        if not is_live or follow_up.held is None:
            follow_up.release()
            return
        self._under_way = follow_up
        self._task = asyncio.create_task(self._run(follow_up), name="follow up")

    async def _run(self, follow_up: FollowUp) -> None:
        """Do the work; its faults are logged and change nothing else."""
        try:
            for work in follow_up.case.once_live or ():
                with follow_up.replica.seal_when_lost():
                    await work()
        except EngineLost:
            log.info("follow_up.ended", extra={"why": "the engine was lost"})
        except Exception:
            log.exception("follow_up.internal_error")
        finally:
            follow_up.release()
            await run_to_end(self._save())

    async def make_way(self) -> None:
        """End the work under way, and wait until the weights that it held are put away."""
        if (ended := await self.stop()) is not None:
            while ended.replica.drained_weights is not None:
                await ended.replica.fewer_fade(len(ended.replica.fading))

    async def stop(self) -> FollowUp | None:
        """End the work under way, and return it."""
        if self._task is None or self._task.done():
            return None
        self._task.cancel()
        await asyncio.wait([self._task])
        return self._under_way
