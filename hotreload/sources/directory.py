"""Follows a folder in which checkpoints appear, and wishes for the newest complete one.

Decides when to look and what to wish; `tree` says what a look shows, `alarm` when to look early.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.survey import survey
from hotreload.core.ledger import PastGeneration
from hotreload.errors import (
    BadRequest,
    CheckpointRejected,
    HotReloadError,
    NothingOfThatName,
    SourceUnavailable,
)
from hotreload.events import FoldersPassedOver, Publish, SourceScanned, Wait
from hotreload.facts.listed import Listed
from hotreload.sources.alarm import Alarm
from hotreload.sources.look import EMPTIED_TODO, EmptiedFolder, Look
from hotreload.sources.passed_over import PassedOverReport
from hotreload.sources.place import MORE_ROOTS, FolderOptions, explain_exchange
from hotreload.sources.places import walk
from hotreload.sources.seen_revisions import SeenRevisions
from hotreload.sources.tree import Tree
from hotreload.threads import LEAVE_AFTER, in_thread
from hotreload.troubles import SOURCE_EMPTY, Trouble
from hotreload.types import Revision, as_text

SLOW_LOOK = 30.0
"""Seconds that a look may take before it is reported; reading new files may well take longer."""


class DirectorySource:
    """Wants the newest complete checkpoint below a folder, or the folder itself when it is one."""

    def __init__(
        self,
        path: Path,
        options: FolderOptions,
        *,
        digests: Digests,
        publish: Publish,
        is_refused: Callable[[str], bool] = lambda id: False,
        generations: Callable[[], Iterable[PastGeneration]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._options = Path(os.path.abspath(path)), options
        self._roots = [self._path, *options.roots]
        self._publish, self._clock = publish, clock
        self._seen = SeenRevisions(digests, options.reads_once)
        self._tree = Tree(
            self._path, options, self._seen, is_refused=is_refused, clock=clock, wall=wall
        )
        self._emptied = EmptiedFolder(self._path, generations)
        self._trouble = Trouble(SOURCE_EMPTY, publish)
        self._wanted, self._handed_over, self._recall_at = "", set[str](), 0.0
        self._first_until: float | None = None
        self._waiting: str | None = None
        self._passed_over = PassedOverReport()
        self._looking, self._woken, self._closed = asyncio.Lock(), asyncio.Event(), False
        self._rest_until = 0.0
        self._cause, self._came = "start", set[str]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm = Alarm(self._path, self._ring)

    async def follow_newest(self) -> AsyncIterator[Revision]:
        """Yield the newest complete revision, now and whenever it becomes another one."""
        self._loop = asyncio.get_running_loop()
        while not self._closed:
            look = await self._look()
            revision = self._choose(look)
            if revision is not None:
                yield revision
            await self._sleep(look.due)

    async def fetch(self, revision: Revision) -> Path:
        """Return the folder that the revision was seen in, if it still holds the same bytes.

        CheckpointRejected when the revision stands for a passed-over folder.
        """
        if (reason := self._tree.passed_over.why(revision)) is not None:
            raise CheckpointRejected(reason.message, code=reason.code)
        if self._seen.find(revision.id) is None:
            with suppress(BadRequest):  # no such folder any more
                await self.resolve(revision.label or None)
        folder = self._seen.find(revision.id)
        if folder is None:
            raise SourceUnavailable(f"{revision}: no folder below {self._path} holds it now")
        if not await _in_thread(partial(self._still_holds, folder, revision)):
            self._tree.doubt(folder)
            self.wake()
            raise SourceUnavailable(f"{folder}: changed since {revision} was found in it")
        return folder

    def _still_holds(self, folder: Path, revision: Revision, cancel: threading.Event) -> bool:
        """Say whether the folder's bytes are the revision's; reads those that anybody touched."""
        looked = survey(folder, self._roots)
        id = self._seen.id_of(looked, cancel, is_finished=revision.is_unread)
        if id not in (revision.id, self._seen.by_content(revision.id)):
            return False
        self._seen.note(revision.id, folder)
        return True

    async def resolve(self, name: str | None) -> Revision:
        """Return the revision that an operator names by folder, path or id; None is the newest.

        By naming a folder an operator declares it finished: an incomplete one that does not change
        for `settle` is returned, too, and the checks find its faults.
        """
        if name is None:
            return await self._resolve_newest()
        seen = self._seen.find(name)
        if seen is not None and await _in_thread(lambda cancel: os.path.isdir(seen)):
            return Revision(name, seen.name)
        folder = await _in_thread(lambda cancel: self._allowed_folder(name))
        if (stand_in := self._tree.stand_in(folder)) is not None:
            return stand_in
        looked = await _in_thread(lambda cancel: survey(folder, self._roots))
        if looked.waiting_for is not None:
            await asyncio.sleep(self._options.settle)
            before, looked = looked, await _in_thread(lambda cancel: survey(folder, self._roots))
            still = looked.waiting_for is not None and looked.files == before.files
            if looked.waiting_for is not None and not (still and looked.files):
                raise SourceUnavailable(f"{folder.name}: {looked.waiting_for}")
        return await _in_thread(partial(self._seen.name, looked, is_finished=True))

    def content_of(self, revision: Revision) -> str:
        """Return the revision's own id: it is made of the content, or of what a stat reports."""
        return revision.id

    def list_seen(self) -> list[Listed]:
        """List every folder that the last look saw, newest first; for any thread, reads nothing."""
        return [self._seen.with_content_id(each) for each in self._tree.list_places()]

    def list_ids(self) -> Sequence[str]:
        """List the ids of revisions that the last look saw, newest first; for any thread."""
        return [self._seen.by_content(id) for id in self._tree.named]

    def wake(self, cause: str = "request") -> None:
        """Look now; may be called from any thread."""
        self._ring(cause, None)

    async def close(self) -> None:
        """End `follow_newest` and every thread of ours."""
        self._closed = True
        self._woken.set()
        async with self._looking:  # a look under way would arm the alarm again
            with suppress(TimeoutError):  # its threads may hang in a mount, too
                async with asyncio.timeout(LEAVE_AFTER):
                    await _in_thread(lambda cancel: self._alarm.stop())

    # --- when to look ------------------------------------------------------------------

    def _ring(self, cause: str, came: str | None) -> None:
        """Wake the loop, from any thread; `came` is a path that appeared in one step."""

        def note() -> None:
            if came is not None:
                self._came.add(came)
            self._note_cause(cause)
            self._woken.set()

        with suppress(RuntimeError):  # the loop may close at any time
            if self._loop is not None:
                self._loop.call_soon_threadsafe(note)

    def _note_cause(self, cause: str) -> None:
        """Remember what causes the next look; an event never hides a rarer cause."""
        if self._cause in ("rescan", "event"):
            self._cause = cause

    async def _sleep(self, due: float | None) -> None:
        """Sleep until something wakes us or the next look is due.

        After a look of up to a second comes a rest as long, so that a burst of events costs half
        a core at most.
        """
        rescan = self._options.rescan
        until = rescan if due is None else min(rescan, due - self._clock())
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
            with self._report_when_slow():
                look = await self._scan(came, at_all, quick=cause == "rescan")
            ended = time.monotonic()
            self._rest_until = ended + min(ended - started, 1.0)
        self._publish(SourceScanned(cause, look.error))
        self._report_waiting(look.error or look.waiting)
        self._trouble.set(look.emptied, EMPTIED_TODO)
        if look.error is None and not at_all:
            self._report_passed_over(look.passed_over)
        return look

    def _report_waiting(self, waiting: str | None) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._publish(Wait(waiting))

    def _report_passed_over(self, telling: PassedOverReport) -> None:
        if telling != self._passed_over:
            self._passed_over = telling
            self._publish(FoldersPassedOver(*telling))

    @contextmanager
    def _report_when_slow(self) -> Iterator[None]:
        """Report a slow look: a mount that hangs would look like a folder where nothing happens."""
        words = f"{self._path}: a look takes more than {SLOW_LOOK:g} s: new files, or a slow mount"
        late = asyncio.get_running_loop().call_later(SLOW_LOOK, self._report_waiting, words)
        try:
            yield
        finally:
            late.cancel()

    async def _scan(self, came: set[str], at_all: bool, *, quick: bool) -> Look:
        """Look at the tree once. A fault of the disk or of the files becomes words in the look."""

        def work(cancel: threading.Event) -> Look:
            try:
                self._alarm.ensure()
                look = self._tree.look(came, at_all=at_all, quick=quick, cancel=cancel)
            except OSError as error:
                reason = error.strerror or str(error)
                look = Look(error=f"{self._path}: cannot be looked at: {reason}")
            look.emptied = self._emptied.judge(look)
            return look

        try:
            return await _in_thread(work)
        except (HotReloadError, ValueError, OSError) as error:  # of any kind: the source goes on
            return Look(error=f"{self._path}: {type(error).__name__}: {error}")

    def _choose(self, look: Look) -> Revision | None:
        """Choose what to wish: the newest complete checkpoint, or once a newer one that is broken.

        One rescan later, when the broken one has been judged, the complete one is wished again:
        otherwise the broken one would have taken its place for good.
        """
        self._wanted = self._seen.by_content(self._wanted)
        held_back = look.overdue is not None and self._clock() < self._recall_at
        held_back = held_back or self._is_too_early(look)
        if look.best is not None and look.best.id != self._wanted and not held_back:
            self._wanted = look.best.id
            self._tree.leave_older(look)
            return look.best
        if look.overdue is None or look.overdue.id in self._handed_over:
            return None
        self._handed_over.add(look.overdue.id)
        self._wanted, self._recall_at = look.overdue.id, self._clock() + self._options.rescan
        return look.overdue

    def _is_too_early(self, look: Look) -> bool:
        """Say whether the first wish waits for a newer, whole checkpoint that only has to be quiet.

        After a restart that one may be live, and an older wish would take its place.
        """
        if self._first_until is None:
            self._first_until = self._clock() + self._options.settle
        is_first = not self._wanted and self._clock() < self._first_until
        return is_first and look.settled_at is not None

    async def _resolve_newest(self) -> Revision:
        while True:
            self._note_cause("request")
            look = await self._look(at_all=True)
            if look.best is not None:
                return look.best
            if look.settled_at is None:
                named = [each.reason.message for each in look.passed_over.named[:1]]
                words = [look.error, look.waiting, *named, "nothing is there"]
                raise SourceUnavailable(next(filter(None, words)))
            await asyncio.sleep(max(look.settled_at - self._clock(), 0.01))

    def _allowed_folder(self, name: str) -> Path:
        """Return the folder that the name means, links resolved; BadRequest if it is outside."""
        if "\0" in name:
            raise BadRequest("a checkpoint's name holds no NUL")
        shown = name if name.isprintable() else ascii(name)
        roots = [Path(os.path.realpath(root)) for root in self._roots]
        with explain_exchange(shown):
            meant = [Path(os.path.realpath(root / name)) for root in roots]
        allowed = [path for path in meant if any(path.is_relative_to(root) for root in roots)]
        if not allowed:
            listed = ", ".join(str(root) for root in self._roots)
            words = f"lies outside of the allowed folders: {listed}; {MORE_ROOTS}"
            raise BadRequest(f"{shown}: {words}")
        with suppress(OSError):
            nested = (each for each in walk(roots[0], self._options.depth) if not each.oddity)
            allowed += [place.folder for place in nested if name in _names(place.path)]
        for folder in allowed:
            with suppress(OSError):
                if folder.is_dir():
                    return folder
        raise NothingOfThatName(f"{shown}: no such folder below {self._path}")


def _names(path: Path) -> tuple[str, str, str]:
    """Return the names by which an order may call a place, also as they are shown."""
    return path.name, as_text(path.name), as_text(str(path))


async def _in_thread[T](work: Callable[[threading.Event], T]) -> T:
    """Run `work` in a thread; if a mount hangs and the caller gives up, it is left behind."""
    return await in_thread(work, leave_as="a look at the watched folder")
