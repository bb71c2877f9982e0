"""The progress of an attempt: its id, its phases, its findings, and whether it is still wanted."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from hotreload import failpoints
from hotreload.attempts import NOT_PROBED, Attempt, Evidence, replace_evidence
from hotreload.errors import CheckpointRejected, Superseded, TryAgain
from hotreload.events import PhaseEntered, Progress, Publish
from hotreload.threads import deadline, run_checked
from hotreload.types import Checkpoint, Generation, HowFar, LoadFacts, Phase, Revision

Reach = Callable[[str], Awaitable[None]]
"""Await at each point where a test may make an attempt fail."""

PUBLISH_SECONDS = 0.25
"""Seconds between two looks at the progress; an unchanged figure is not published again."""

_CURRENT: ContextVar[str | None] = ContextVar("attempt", default=None)


@contextmanager
def new_attempt() -> Iterator[str]:
    """Give the attempt in this block an id; threads that `threads.py` starts inherit it."""
    id = secrets.token_hex(4)
    token = _CURRENT.set(id)
    try:
        yield id
    finally:
        _CURRENT.reset(token)


def current_attempt() -> str | None:
    """Return the id of the attempt that this code runs for; None outside of attempts."""
    return _CURRENT.get()


@dataclass(eq=False)
class AttemptProgress:
    """The state and the findings of one attempt at one revision."""

    revision: Revision
    publish: Publish
    clock: Callable[[], float] = time.monotonic
    reach: Reach = failpoints.reach
    evidence: tuple[Evidence, ...] = (NOT_PROBED,)
    """The findings of each judge so far; at first its evidence before it is asked."""
    checkpoint: Checkpoint | None = None
    """The checked files, once the attempt has prepared them."""
    is_staged: bool = False
    """True once little is left to do: a newer wish waits for its end."""
    waits_for_room: bool = False
    """True while the attempt waits for older weights to end: no work is lost if a newer wish
    takes its place, each time."""
    generation: Generation | None = None
    """The generation that the revision became, once it is live."""
    replica: int = 0
    """Index of the engine that the attempt works on."""
    phases: dict[Phase, float] = field(default_factory=dict)
    pause_seconds: float = 0.0
    rolled_back: bool = False
    verdict: CheckpointRejected | None = None
    """The verdict of the probes or of a judge; a later cancel does not undo it."""
    fingerprints: tuple[str, str] | None = None
    loading: LoadFacts | None = None
    """Facts of the staging of its weights, once they are staged."""
    version: str = ""
    """The version given by the caller of these weights."""
    ended: Attempt = field(init=False)
    """The record of the attempt's end; not set before."""

    def note(self, evidence: Evidence) -> None:
        """Keep what a judge found, in the place of what it found before."""
        self.evidence = replace_evidence(self.evidence, evidence)

    @asynccontextmanager
    async def phase(
        self, phase: Phase, within: float | None = None, setting: str = ""
    ) -> AsyncIterator[None]:
        """Publish and time a phase; one that takes too long postpones the attempt."""
        self.publish(PhaseEntered(self.revision, phase, self.replica))
        started = self.clock()
        try:
            async with deadline(within, f"{phase} {self.revision}", f"[reload] {setting}"):
                await self.reach(phase)
                yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + self.clock() - started


@dataclass(eq=False)
class WantedCheck:
    """Checks whether an attempt's revision is still wanted, as long as it may be given up."""

    progress: AttemptProgress
    news: asyncio.Event
    """Set whenever the answer may have changed."""
    not_now: Callable[[], str | None] = lambda: None
    """Return why to put the attempt off; None to go on."""
    is_wanted: Callable[[], bool] = lambda: True
    may_give_up: bool = False
    """True while the attempt can be given up without changing the live weights."""
    refusal: CheckpointRejected | None = None

    def ask(self, is_wanted: Callable[[], bool]) -> None:
        """From now on give the attempt up once `is_wanted` is False, and for no other reason."""
        self.is_wanted, self.may_give_up, self.refusal = is_wanted, True, None

    def refuse(self, why: CheckpointRejected) -> None:
        """End the attempt for this reason: its weights answer on an engine, and badly."""
        self.refusal = why
        self.news.set()

    def check_refused(self) -> None:
        """Raise the reason for which its weights were refused, if they were."""
        if self.refusal is not None:
            raise self.refusal

    def check(self) -> None:
        """Raise Superseded when the revision is not wanted any more, or why it was refused.

        TryAgain when it is to be put off, unless little is left to do.
        """
        self.check_refused()
        if self.may_give_up and not self.progress.is_staged and (why := self.not_now()):
            raise TryAgain(f"{self.progress.revision} was put off: {why}")
        if not self.is_wanted():
            why = "another is wanted now, or a pin holds what is live"
            raise Superseded(f"{self.progress.revision} was given up: {why}")

    async def run_while_wanted[T](
        self, work: Awaitable[T], discard: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Do long work, and cancel it when the revision is not wanted any more."""
        return await run_checked(self.news, self.check, work, discard)


@asynccontextmanager
async def publish_progress(
    look: Callable[[], HowFar | None],
    revision: Revision,
    publish: Publish,
    phase: Phase = Phase.STAGING,
) -> AsyncIterator[None]:
    """Publish the progress that `look` returns a few times a second, until the block ends."""

    async def publish_for_ever() -> None:
        last: HowFar | None = None
        while True:
            now = look()
            if now is not None and now != last:
                publish(Progress(revision, phase, now.done, now.of))
            last = now
            await asyncio.sleep(PUBLISH_SECONDS)

    name = f"publish the progress of {phase}"
    publishing = asyncio.create_task(publish_for_ever(), name=name)
    try:
        yield
    finally:
        publishing.cancel()
