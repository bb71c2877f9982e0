"""Checkpoints that appear in a folder: the newest complete one is what is wanted.

Decides when to look and what to wish; `tree` says what a look shows, `alarm` when to look early.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from hotreload.core.threads import LEAVE_AFTER, in_thread
from hotreload.errors import BadRequest, HotReloadError, SourceUnavailable
from hotreload.events import Publish, SourceScanned, Waiting
from hotreload.sources.alarm import Alarm
from hotreload.sources.places import places
from hotreload.sources.seen import Seen, SurveyLike
from hotreload.sources.tree import Look, Tree
from hotreload.types import Revision

SLOW_LOOK = 30.0
"""A look that takes longer is told; reading what is new may well do so."""


class DirectorySource:
    """Wants the newest complete checkpoint below a folder, or the folder itself when it is one."""

    def __init__(
        self,
        path: Path,
        *,
        survey: Callable[[Path], SurveyLike],
        identify: Callable[[SurveyLike], str],
        publish: Publish,
        pattern: str = "*",
        marker: str | None = None,
        settle: float = 2.0,
        rescan: float = 5.0,
        order: Literal["step", "time", "name"] = "step",
        patience: float = 60.0,
        depth: int = 3,
        roots: Iterable[Path] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(os.path.abspath(path))
        self._roots = [self._path, *roots]
        self._survey, self._publish, self._clock = survey, publish, clock
        self._settle, self._rescan, self._depth = settle, rescan, depth
        self._seen = Seen(identify)
        self._tree = Tree(
            self._path,
            survey=survey,
            seen=self._seen,
            pattern=pattern,
            marker=marker,
            settle=settle,
            order=order,
            patience=patience,
            depth=depth,
            clock=clock,
            wall=wall,
        )
        self._wanted, self._handed_over, self._recall_at = "", set[str](), 0.0
        self._waiting: str | None = None
        self._looking, self._woken, self._closed = asyncio.Lock(), asyncio.Event(), False
        self._rest_until = 0.0
        self._cause, self._came = "start", set[str]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm = Alarm(self._path, self._ring)

    async def wanted(self) -> AsyncIterator[Revision]:
        """Yield the newest complete revision, now and whenever it becomes another one."""
        self._loop = asyncio.get_running_loop()
        while not self._closed:
            look = await self._look()
            revision = self._choose(look)
            if revision is not None:
                yield revision
            await self._sleep(look.due)

    async def fetch(self, revision: Revision) -> Path:
        """The folder the revision was seen in, as long as nobody has touched it since."""
        if self._seen.find(revision.id) is None:
            with suppress(BadRequest):  # no such folder any more
                await self.resolve(revision.label or None)
        sighting = self._seen.find(revision.id)
        if sighting is None:
            raise SourceUnavailable(f"{revision}: no folder below {self._path} holds it now")
        survey = await _in_thread(lambda: self._survey(sighting.folder))
        if survey.files != sighting.files:
            raise SourceUnavailable(f"{sighting.folder}: changed since {revision} was found in it")
        return sighting.folder

    async def resolve(self, name: str | None) -> Revision:
        """The revision an operator names by folder, path or id; None asks for the newest.

        Naming a folder says that it is finished: what is incomplete and stays as it is for
        `settle` is returned all the same, so that the checks can say what is wrong with it.
        """
        if name is None:
            return await self._resolve_newest()
        sighting = self._seen.find(name)
        if sighting is not None:
            return Revision(name, sighting.folder.name)
        folder = await _in_thread(lambda: self._allowed_folder(name))
        survey = await _in_thread(lambda: self._survey(folder))
        if survey.waiting_for is not None:
            await asyncio.sleep(self._settle)
            before, survey = survey, await _in_thread(lambda: self._survey(folder))
            still = survey.waiting_for is not None and survey.files == before.files
            if survey.waiting_for is not None and not (still and survey.files):
                raise SourceUnavailable(f"{folder.name}: {survey.waiting_for}")
        return await _in_thread(lambda: self._seen.name(folder, survey))

    def content_of(self, revision: Revision) -> str:
        """A folder's revision is named by its content."""
        return revision.id

    def wake(self, cause: str = "request") -> None:
        """Look now; may be called from any thread."""
        self._ring(cause, None)

    async def close(self) -> None:
        """End `wanted` and every thread of ours."""
        self._closed = True
        self._woken.set()
        async with self._looking:  # a look under way would arm the alarm again
            with suppress(TimeoutError):  # its threads may hang in a mount, too
                async with asyncio.timeout(LEAVE_AFTER):
                    await _in_thread(self._alarm.stop)

    # --- when to look ------------------------------------------------------------------

    def _ring(self, cause: str, came: str | None) -> None:
        """Called by the alarm's threads too; `came` is a path that came by a rename."""

        def note() -> None:
            if came is not None:
                self._came.add(came)
            self._note_cause(cause)
            self._woken.set()

        with suppress(RuntimeError):  # the loop may close at any time
            if self._loop is not None:
                self._loop.call_soon_threadsafe(note)

    def _note_cause(self, cause: str) -> None:
        """What the next look is for; the many events never hide that some were lost."""
        if self._cause in ("rescan", "event"):
            self._cause = cause

    async def _sleep(self, due: float | None) -> None:
        """Until something wakes us or it is time; a burst of events costs half a core at most."""
        until = self._rescan if due is None else min(self._rescan, due - self._clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(until, 0.01)):
                await self._woken.wait()
            if not self._closed:
                await asyncio.sleep(self._rest_until - time.monotonic())

    # --- looking, and what to wish -----------------------------------------------------

    async def _look(self, *, at_all: bool = False) -> Look:
        async with self._looking:
            if self._closed:
                return Look()
            self._woken.clear()
            cause, self._cause = self._cause, "rescan"
            came, self._came = self._came, set()
            started = time.monotonic()
            with self._saying_when_slow():
                look = await self._scan(came, at_all)
            ended = time.monotonic()
            self._rest_until = ended + min(ended - started, 1.0)
        self._publish(SourceScanned(cause, look.error))
        self._say(look.error or look.waiting)
        return look

    def _say(self, waiting: str | None) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._publish(Waiting(waiting))

    @contextmanager
    def _saying_when_slow(self) -> Iterator[None]:
        """A mount that hangs would otherwise look like a folder where nothing happens."""
        words = f"{self._path}: a look takes more than {SLOW_LOOK:g} s: new files, or a slow mount"
        late = asyncio.get_running_loop().call_later(SLOW_LOOK, self._say, words)
        try:
            yield
        finally:
            late.cancel()

    async def _scan(self, came: set[str], at_all: bool) -> Look:
        """One look at the tree. What the world can do to it ends no watch; a fault of ours does."""

        def work() -> Look:
            self._alarm.ensure()
            return self._tree.look(came, at_all=at_all)

        try:
            return await _in_thread(work)
        except OSError as error:
            reason = error.strerror or str(error)
            return Look(error=f"{self._path}: cannot be looked at: {reason}")
        except (HotReloadError, ValueError) as error:  # names and bytes that nobody has foreseen
            return Look(error=f"{self._path}: {type(error).__name__}: {error}")

    def _choose(self, look: Look) -> Revision | None:
        """What to wish now: the newest complete one, and once what is newer and stays broken.

        After that the complete one is wished again, or a broken newcomer would have taken its
        place for good; a rescan later, so that the broken one is judged before.
        """
        held_back = look.overdue is not None and self._clock() < self._recall_at
        if look.best is not None and look.best.id != self._wanted and not held_back:
            self._wanted = look.best.id
            self._tree.leave_older(look)
            return look.best
        if look.overdue is None or look.overdue.id in self._handed_over:
            return None
        self._handed_over.add(look.overdue.id)
        self._wanted, self._recall_at = look.overdue.id, self._clock() + self._rescan
        return look.overdue

    async def _resolve_newest(self) -> Revision:
        while True:
            self._note_cause("request")
            look = await self._look(at_all=True)
            if look.best is not None:
                return look.best
            if look.settled_at is None:
                raise SourceUnavailable(look.error or look.waiting or "nothing is there")
            await asyncio.sleep(max(look.settled_at - self._clock(), 0.01))

    def _allowed_folder(self, name: str) -> Path:
        """The folder that is meant, links resolved; BadRequest when it is none of ours."""
        if not name.isprintable():
            raise BadRequest("a checkpoint's name must be printable text")
        roots = [Path(os.path.realpath(root)) for root in self._roots]
        meant = [Path(os.path.realpath(root / name)) for root in roots]
        allowed = [path for path in meant if any(path.is_relative_to(root) for root in roots)]
        if not allowed:
            listed = ", ".join(str(root) for root in self._roots)
            raise BadRequest(f"{name}: lies outside of the allowed folders: {listed}")
        with suppress(OSError):
            nested = places(roots[0], self._depth)
            allowed += [place.folder for place in nested if place.path.name == name]
        for folder in allowed:
            with suppress(OSError):
                if folder.is_dir():
                    return folder
        raise BadRequest(f"{name}: no such folder below {self._path}")


async def _in_thread[T](work: Callable[[], T]) -> T:
    """Run it in a thread, which is left behind when a mount hangs and nobody waits any more."""
    return await in_thread(lambda cancel: work(), leave_as="a look at the watched folder")
