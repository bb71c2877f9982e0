"""Progress of an attempt: its id, its phases, what has come of it, and if it is still wanted."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from hotreload import failpoints
from hotreload.errors import CheckpointRejected, Superseded
from hotreload.events import PhaseEntered, Progress, Publish
from hotreload.threads import checked_at, deadline
from hotreload.types import (
    NOT_PROBED,
    Attempt,
    Checkpoint,
    Evidence,
    Generation,
    HowFar,
    Loading,
    Phase,
    Revision,
    noted,
)

Reach = Callable[[str], Awaitable[None]]
"""Called at each point where a test may make an attempt fail."""

PUBLISH_SECONDS = 0.25
"""Time between two looks at how far it is; what is as it was is not told again."""

_CURRENT: ContextVar[str | None] = ContextVar("attempt", default=None)


@contextmanager
def new_attempt() -> Iterator[str]:
    """Give the attempt made in this block an id; threads started by `threads.py` inherit it."""
    id = secrets.token_hex(4)
    token = _CURRENT.set(id)
    try:
        yield id
    finally:
        _CURRENT.reset(token)


def current_attempt() -> str | None:
    """The id of the attempt this code runs for; None outside of attempts."""
    return _CURRENT.get()


class AttemptProgress:
    """One attempt at one revision: where it stands, and what came of it."""

    def __init__(
        self,
        revision: Revision,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
        reach: Reach = failpoints.reach,
        blank: tuple[Evidence, ...] = (NOT_PROBED,),
    ) -> None:
        """`blank` is the evidence of each judge until it is asked."""
        self.revision = revision
        self.publish = publish
        self.checkpoint: Checkpoint | None = None
        """The checked files, once the attempt has prepared them."""
        self.is_staged = False
        """True once little is left to do, so that a newer wish waits."""
        self.waits_for_room = False
        """True from when it waits for older weights to end until they have: it does nothing then,
        so a newer wish may take its place each time."""
        self.generation: Generation | None = None
        """The generation that the revision became, once it is live."""
        self.replica = 0
        """On which of the daemon's engines it is to be live."""
        self.phases: dict[Phase, float] = {}
        self.pause_seconds = 0.0
        self.rolled_back = False
        self.verdict: CheckpointRejected | None = None
        """The verdict of the probe on the weights; a cancel that comes later does not undo it."""
        self.evidence = blank
        """The findings of each judge so far."""
        self.fingerprints: tuple[str, str] | None = None
        self.loading: Loading | None = None
        """Facts of the staging of its weights, once they are staged."""
        self.version = ""
        """The name that whoever ordered its weights has for them."""
        self.reach = reach
        self._clock = clock
        self.ended: Attempt
        """The record of its end; there is nothing here before."""

    def note(self, evidence: Evidence) -> None:
        """Keep what a judge found, in the place of what it found before."""
        self.evidence = noted(self.evidence, evidence)

    @asynccontextmanager
    async def phase(
        self, phase: Phase, within: float | None = None, setting: str = ""
    ) -> AsyncIterator[None]:
        """Publish and time a phase; one that takes too long puts the attempt off."""
        self.publish(PhaseEntered(self.revision, phase, self.replica))
        started = self._clock()
        try:
            async with deadline(within, f"{phase} {self.revision}", f"[reload] {setting}"):
                await self.reach(phase)
                yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + self._clock() - started


class WantedCheck:
    """Asks, as long as an attempt may be given up, whether its revision is still wanted."""

    def __init__(self, progress: AttemptProgress, news: asyncio.Event) -> None:
        """`news` is set whenever the answer may have changed."""
        self._progress = progress
        self._news = news
        self._is_wanted: Callable[[], bool] = lambda: True
        self.may_give_up = False
        """True while the attempt can be given up, and what was live be had again."""
        self._refusal: CheckpointRejected | None = None

    def ask(self, is_wanted: Callable[[], bool]) -> None:
        """From now on, give the attempt up when `is_wanted` says no, and for no other reason."""
        self._is_wanted, self.may_give_up, self._refusal = is_wanted, True, None

    def refuse(self, why: CheckpointRejected) -> None:
        """Have the attempt end for this reason: its weights answer somewhere, and badly."""
        self._refusal = why
        self._news.set()

    def check_refused(self) -> None:
        """Raise why its weights were refused, if they were."""
        if self._refusal is not None:
            raise self._refusal

    def check(self) -> None:
        """Raise Superseded when something else is wanted, or why its weights were refused."""
        self.check_refused()
        if not self._is_wanted():
            why = "another is wanted now, or a pin holds what is live"
            raise Superseded(f"{self._progress.revision} was given up: {why}")

    async def run_while_wanted[T](
        self, work: Awaitable[T], discard: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Do long work, but give it up when something else is wanted."""
        return await checked_at(self._news, self.check, work, discard)


@asynccontextmanager
async def publish_progress(
    look: Callable[[], HowFar | None],
    revision: Revision,
    publish: Publish,
    phase: Phase = Phase.STAGING,
) -> AsyncIterator[None]:
    """Publish what `look` returns a few times a second, until the end of the block."""
    going_on = _publish_for_ever(look, revision, publish, phase)
    telling = asyncio.create_task(going_on, name=f"tell how far {phase} is")
    try:
        yield
    finally:
        telling.cancel()


async def _publish_for_ever(
    look: Callable[[], HowFar | None], revision: Revision, publish: Publish, phase: Phase
) -> None:
    told: HowFar | None = None
    while True:
        now = look()
        if now is not None and now != told:
            publish(Progress(revision, phase, now.done, now.of))
        told = now
        await asyncio.sleep(PUBLISH_SECONDS)
