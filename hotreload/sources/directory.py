"""Checkpoints that appear in a folder: the newest complete one is what is wanted.

A look at the folder is the truth; watchdog only says when to look early. What makes a
checkpoint complete, and which bytes it holds, is asked of the callables it is given.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Protocol

from watchdog import events as fs
from watchdog.observers.inotify import InotifyObserver

from hotreload.errors import BadRequest, HotReloadError, SourceUnavailable
from hotreload.events import Publish, SourceScanned, Waiting
from hotreload.types import Revision

_log = logging.getLogger("hotreload.sources.directory")
_REMOTE = re.compile(r"nfs|cifs|smb|9p$|afs|ceph|gluster|lustre|gpfs|beegfs|virtiofs|fuse\.")
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_UNFINISHED = re.compile(r"\.|tmp-|.*\.(tmp|part|partial|incomplete)$")
_LONG_AGO = 60.0  # a margin that no network file system's clock is expected to be off by
_REMEMBERED = 256
_RETRY = 1.0
_UNARMED = object()

_Rank = tuple[int, int, str]


class SurveyLike(Protocol):
    """A folder looked at as a checkpoint; equal `files` mean that nothing was touched."""

    @property
    def files(self) -> Sequence[object]: ...

    @property
    def waiting_for(self) -> str | None: ...


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
        self._survey, self._identify, self._publish = survey, identify, publish
        self._pattern, self._order, self._depth = pattern, order, depth
        self._marker, self._settle, self._patience = marker, settle, patience
        self._rescan, self._clock, self._wall = rescan, clock, wall
        self._candidates: dict[Path, _Candidate] = {}
        self._known: dict[str, tuple[Path, Sequence[object]]] = {}
        self._wanted, self._handed_over, self._recall_at = "", set[str](), 0.0
        self._waiting: str | None = None
        self._wished: tuple[_Rank | None, float] = None, 0.0
        self._looking, self._woken, self._closed = asyncio.Lock(), asyncio.Event(), False
        self._rest_until = 0.0
        self._cause, self._claims = "start", set[str]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm = _Alarm(self._path, self._ring)

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
        if revision.id not in self._known:
            with suppress(BadRequest):  # no such folder any more
                await self.resolve(revision.label or None)
        if revision.id not in self._known:
            raise SourceUnavailable(f"{revision}: no folder below {self._path} holds it now")
        folder, files = self._known[revision.id]
        survey = await _in_thread(lambda: self._survey(folder))
        if survey.files != files:
            raise SourceUnavailable(f"{folder}: changed since {revision} was found in it")
        return folder

    async def resolve(self, name: str | None) -> Revision:
        """The revision an operator names by folder, path or id; None asks for the newest.

        Naming a folder says that it is finished: what is incomplete and stays as it is for
        `settle` is returned all the same, so that the checks can say what is wrong with it.
        """
        if name is None:
            return await self._resolve_newest()
        if name in self._known:
            return Revision(name, self._known[name][0].name)
        folder = await _in_thread(lambda: self._allowed_folder(name))
        survey = await _in_thread(lambda: self._survey(folder))
        if survey.waiting_for is not None:
            await asyncio.sleep(self._settle)
            before, survey = survey, await _in_thread(lambda: self._survey(folder))
            still = survey.waiting_for is not None and survey.files == before.files
            if survey.waiting_for is not None and not (still and survey.files):
                raise SourceUnavailable(f"{folder.name}: {survey.waiting_for}")
        return await _in_thread(lambda: self._remember(folder, survey))

    def wake(self, cause: str = "request") -> None:
        """Look now; may be called from any thread."""
        self._ring(cause, None)

    async def close(self) -> None:
        """End `wanted` and every thread of ours."""
        self._closed = True
        self._woken.set()
        async with self._looking:  # a look under way would arm the alarm again
            await _in_thread(self._alarm.stop)

    def _ring(self, cause: str, claim: str | None) -> None:
        """Called by watchdog's threads; `claim` is a path that came by a rename."""

        def note() -> None:
            if claim is not None:
                self._claims.add(claim)
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

    async def _look(self) -> "_Look":
        async with self._looking:
            if self._closed:
                return _Look()
            self._woken.clear()
            cause, self._cause = self._cause, "rescan"
            claims, self._claims = self._claims, set()
            started = time.monotonic()
            look = await _in_thread(lambda: self._scan(claims))
            ended = time.monotonic()
            self._rest_until = ended + min(ended - started, 1.0)
        self._publish(SourceScanned(cause, look.error))
        waiting = look.error or look.waiting
        if waiting != self._waiting:
            self._waiting = waiting
            self._publish(Waiting(waiting))
        return look

    def _choose(self, look: "_Look") -> Revision | None:
        """What to wish now: the newest complete one, and once what is newer and stays broken.

        After that the complete one is wished again, or a broken newcomer would have taken its
        place for good; a rescan later, so that the broken one is judged before.
        """
        held_back = look.overdue is not None and self._clock() < self._recall_at
        if look.best is not None and look.best.id != self._wanted and not held_back:
            self._wanted = look.best.id
            self._wished = look.best_rank, self._clock()
            return look.best
        if look.overdue is None or look.overdue.id in self._handed_over:
            return None
        self._handed_over.add(look.overdue.id)
        self._wanted, self._recall_at = look.overdue.id, self._clock() + self._rescan
        return look.overdue

    async def _resolve_newest(self) -> Revision:
        while True:
            self._note_cause("request")
            look = await self._look()
            if look.best is not None:
                return look.best
            if look.settled_at is None:
                raise SourceUnavailable(look.error or look.waiting or "nothing is there")
            await asyncio.sleep(max(look.settled_at - self._clock(), 0.01))

    def _scan(self, claims: set[str]) -> "_Look":
        """One look at the tree, in a thread."""
        try:
            self._alarm.ensure()
            now = self._clock()
            self._follow(claims, now)
            ranked = sorted(self._candidates.values(), key=self._rank, reverse=True)
            return self._judge(ranked, now)
        except OSError as error:
            self._candidates.clear()
            return _Look(error=f"{self._path}: cannot be looked at: {error.strerror}")
        except Exception as error:  # a fault of ours must not end the watch for good
            _log.exception("source.scan_failed")
            return _Look(error=f"{type(error).__name__}: {error}")

    def _follow(self, claims: set[str], now: float) -> None:
        """Bring the candidates up to what the tree shows now."""
        root = Path(os.path.realpath(self._path))
        before, self._candidates = self._candidates, {}
        for place in _places(root, root, self._depth):
            if not self._matches(place.path, root):
                continue
            candidate = before.get(place.folder) or _Candidate(place, now)
            if candidate.place.entries != place.entries:
                self._note_change(candidate, now)
            candidate.place = place
            candidate.claimed = candidate.claimed or _came_by(place.path, claims)
            self._candidates[place.folder] = candidate

    def _note_change(self, candidate: "_Candidate", now: float) -> None:
        """Something in the folder is another; start anew if it is what would be loaded."""
        seen = candidate.survey
        candidate.survey = self._survey(candidate.place.folder) if seen is not None else None
        if seen is None or candidate.survey is None or candidate.survey.files != seen.files:
            candidate.since, candidate.claimed, candidate.revision = now, False, None

    def _matches(self, path: Path, root: Path) -> bool:
        if path == root:
            return fnmatchcase(self._path.name, self._pattern)
        name = str(path.relative_to(root)) if "/" in self._pattern else path.name
        return fnmatchcase(name, self._pattern)

    def _rank(self, candidate: "_Candidate") -> "_Rank":
        place = candidate.place
        step = place.step if self._order == "step" else 0
        return step, 0 if self._order == "name" else place.time, place.label

    def _judge(self, ranked: "list[_Candidate]", now: float) -> "_Look":
        """Newest first: the first that can be wished, and what is missing of the newer ones."""
        look = _Look(now)
        if not ranked:
            look.waiting = f"no checkpoint in {self._path} matches {self._pattern!r} yet"
        for candidate in ranked:
            missing = self._missing(candidate, look)
            if missing is None and not self._is_passed_over(candidate):
                look.best, look.best_rank = self._revision(candidate), self._rank(candidate)
            if look.best is not None:
                break
            missing = missing or "is being written to"
            look.waiting = look.waiting or f"{candidate.place.label}: {missing}"
            if candidate is ranked[0] and self._is_overdue(candidate, now):
                look.overdue = self._revision(candidate)
        return look

    def _is_passed_over(self, candidate: "_Candidate") -> bool:
        """An older one that was there at the last wish, and that nobody has touched since.

        Or a checkpoint that is overwritten or deleted would bring back the one before it.
        """
        rank, at = self._wished
        return rank is not None and self._rank(candidate) < rank and candidate.since <= at

    def _missing(self, candidate: "_Candidate", look: "_Look") -> str | None:
        """Why it cannot be wished yet, in words; None when it can."""
        if candidate.survey is None:
            candidate.survey = self._survey(candidate.place.folder)
        if candidate.survey.waiting_for is not None:
            look.wake_at(candidate.since + self._span(candidate))
            return candidate.survey.waiting_for
        if self._marker and candidate.place.changed_at(self._marker) is None:
            return f"waiting for its marker {self._marker}"
        if self._is_vouched_for(candidate) or self._is_quiet(candidate, self._settle, look.now):
            return None
        look.settled_at = candidate.since + self._settle
        look.wake_at(look.settled_at)
        return f"complete, until it has been quiet for {self._settle:g} s"

    def _is_vouched_for(self, candidate: "_Candidate") -> bool:
        """Its writer has said that it is finished: nothing else need be waited for.

        A rename vouches for what the folder held on arrival, a marker for what was there before
        it (a plain copy of a finished folder may well bring the marker first).
        """
        marked = candidate.place.changed_at(self._marker) if self._marker else None
        return candidate.claimed or (
            marked is not None and marked >= candidate.place.last_change(but=self._marker)
        )

    def _is_quiet(self, candidate: "_Candidate", span: float, now: float) -> bool:
        """Unchanged for that long by our own clock, or since long ago by the files' times."""
        age = self._wall() - candidate.place.last_change() / 1e9
        return now - candidate.since >= span or age >= span + _LONG_AGO

    def _span(self, candidate: "_Candidate") -> float:
        """How long an incomplete folder may stay so until it is handed over to be refused."""
        return self._settle if self._is_vouched_for(candidate) else self._patience

    def _is_overdue(self, candidate: "_Candidate", now: float) -> bool:
        incomplete = candidate.survey is not None and candidate.survey.waiting_for is not None
        broken = incomplete and candidate.place.has_weights
        return broken and self._is_quiet(candidate, self._span(candidate), now)

    def _revision(self, candidate: "_Candidate") -> Revision | None:
        """The candidate's revision; None when it changes while it is being hashed."""
        assert candidate.survey is not None
        if candidate.revision is None:
            with suppress(SourceUnavailable):
                candidate.revision = self._remember(candidate.place.folder, candidate.survey)
        if candidate.revision is None:
            candidate.since, candidate.claimed = self._clock(), False
        else:
            self._known[candidate.revision.id] = candidate.place.folder, candidate.survey.files
        return candidate.revision

    def _remember(self, folder: Path, survey: SurveyLike) -> Revision:
        """Hash what the survey saw, and keep where it lies for `fetch`."""
        stand_in = blake2b(repr((folder, survey.files)).encode(), digest_size=16).hexdigest()
        try:
            revision = Revision(self._identify(survey) if survey.files else stand_in, folder.name)
        except HotReloadError as error:
            if error.code != "io":
                raise SourceUnavailable(str(error)) from error
            # Unreadable files have no bytes to be told by; they still must be refused by name.
            revision = Revision(stand_in, folder.name)
        self._known[revision.id] = folder, survey.files
        while len(self._known) > _REMEMBERED:
            self._known.pop(next(iter(self._known)))
        return revision

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
            nested = _places(roots[0], roots[0], self._depth)
            allowed += [place.folder for place in nested if place.path.name == name]
        for folder in allowed:
            with suppress(OSError):
                if folder.is_dir():
                    return folder
        raise BadRequest(f"{name}: no such folder below {self._path}")


@dataclass(slots=True)
class _Look:
    """What one look came to."""

    now: float = 0.0
    best: Revision | None = None
    best_rank: "_Rank | None" = None
    overdue: Revision | None = None
    waiting: str | None = None
    error: str | None = None
    settled_at: float | None = None
    due: float | None = None

    def wake_at(self, at: float) -> None:
        if at > self.now:
            self.due = at if self.due is None else min(self.due, at)


@dataclass(slots=True)
class _Candidate:
    """A place followed over time; `since` is when our own clock last saw it change."""

    place: "_Place"
    since: float
    survey: SurveyLike | None = None
    claimed: bool = False
    revision: Revision | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder that may hold a checkpoint, as one look at the tree shows it."""

    path: Path
    folder: Path  # links resolved: where `latest` leads now
    entries: tuple[tuple[str, int, int, int, int, int], ...]

    @property
    def label(self) -> str:
        return self.folder.name

    @property
    def has_weights(self) -> bool:
        names = (name for name, *_ in self.entries if not _UNFINISHED.match(name))
        return any(name.endswith(_WEIGHTS) for name in names)

    @property
    def step(self) -> int:
        numbers = re.findall(r"[0-9]+", self.label)
        return int(numbers[-1]) if numbers else -1

    @property
    def time(self) -> int:
        # A copy may carry any mtime along, one in the future too; ctime is this machine's own.
        return max((min(mtime, ctime) for *_, mtime, ctime in self.entries), default=0)

    def changed_at(self, name: str) -> int | None:
        return next((entry[-1] for entry in self.entries if entry[0] == name), None)

    def last_change(self, but: str | None = None) -> int:
        return max((entry[-1] for entry in self.entries if entry[0] != but), default=0)


def _came_by(path: Path, claims: set[str]) -> bool:
    """Whether it, or a folder that holds it, is among the paths that came by a rename."""
    return bool(claims) and any(str(part) in claims for part in (path, *path.parents))


def _places(root: Path, path: Path, depth: int, leads_to: str | None = None) -> Iterator[_Place]:
    """Every folder from here down that looks like a checkpoint, finished or begun.

    Nothing is searched inside a checkpoint (but the root may be one and hold others), behind a
    link (they may go round), or in what is named as unfinished.
    """
    folder = Path(leads_to) if leads_to is not None else path
    try:
        with os.scandir(path) as listing:
            found = list(listing)
    except OSError:
        if path == root:
            raise
        yield _Place(path, folder, ())
        return
    place = _Place(path, folder, tuple(sorted(map(_entry, found))))
    if place.has_weights or place.changed_at("config.json") is not None:
        yield place
        if path != root:
            return
    for entry in found if depth > 0 else ():
        if not _UNFINISHED.match(entry.name) and _is_folder(entry):
            link = os.path.realpath(entry.path) if entry.is_symlink() else None
            yield from _places(root, path / entry.name, 0 if link else depth - 1, link)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _entry(entry: os.DirEntry[str]) -> tuple[str, int, int, int, int, int]:
    try:
        status = entry.stat()
    except OSError:
        return entry.name, 0, 0, 0, 0, 0
    times = status.st_mtime_ns, status.st_ctime_ns
    return entry.name, status.st_dev, status.st_ino, status.st_size, *times


class _Alarm:
    """Rings when something happens below the root or to it; may be deaf at any time."""

    _KINDS = (
        fs.DirMovedEvent,
        fs.FileMovedEvent,
        fs.DirCreatedEvent,
        fs.FileCreatedEvent,
        fs.DirDeletedEvent,
        fs.FileDeletedEvent,
        fs.FileClosedEvent,  # by a writer; readers, such as we are, open and close unheard
    )

    def __init__(self, root: Path, ring: Callable[[str, str | None], None]) -> None:
        self._root, self._ring = root, ring
        self._observer: InotifyObserver | None = None
        self._armed_for: object = _UNARMED
        self._not_before, self._pause = 0.0, _RETRY
        self._said = ""
        self._overflows = _Overflows(self._hear_overflow)

    def ensure(self) -> None:
        """Arm, or arm anew when the root is another folder than before or a thread is dead."""
        now, root = time.monotonic(), _identity(self._root)
        if (root == self._armed_for and self._is_alive()) or now < self._not_before:
            return
        self.stop()
        remote = remote_file_system(self._root)
        try:
            if remote is None:
                self._arm(root)
            self._armed_for, self._pause = root, _RETRY
            self._say(f"{remote} does not tell of changes made elsewhere" if remote else "")
        except OSError as error:
            self.stop()
            self._not_before, self._pause = now + self._pause, min(self._pause * 2, 60.0)
            self._say(f"no inotify: {error.strerror}; see fs.inotify.max_user_watches")

    def stop(self) -> None:
        """Stop and join every thread."""
        logging.getLogger("watchdog.observers.inotify_c").removeHandler(self._overflows)
        observer, self._observer, self._armed_for = self._observer, None, _UNARMED
        if observer is not None:
            observer.stop()
            if observer.is_alive():
                observer.join()

    def _arm(self, root: "tuple[str, int, int] | None") -> None:
        logging.getLogger("watchdog.observers.inotify_c").addHandler(self._overflows)
        # Full events tell a folder that was renamed into the root from one that was made there.
        self._observer = InotifyObserver(generate_full_events=True)
        kinds = list(self._KINDS)
        if self._root.parent.is_dir():
            # A watch on the root hears nothing of its being made, renamed or, a link, flipped.
            beside = _Ear(self._hear_beside)
            self._observer.schedule(beside, str(self._root.parent), event_filter=kinds)
        if root is not None:
            inside = _Ear(self._hear)
            self._observer.schedule(inside, root[0], recursive=True, event_filter=kinds)
        self._observer.start()

    def _is_alive(self) -> bool:
        if self._observer is None:
            return True  # polling, and content with it
        reader = getattr(self._observer, "_inotify_fd", None)  # watchdog 7.1: a thread of its own
        threads = [self._observer, *self._observer.emitters, *([reader] if reader else [])]
        return all(thread.is_alive() for thread in threads)

    def _hear(self, event: fs.FileSystemEvent) -> None:
        self._ring("event", _came_whole(event))

    def _hear_beside(self, event: fs.FileSystemEvent) -> None:
        paths = (os.fsdecode(event.dest_path), os.fsdecode(event.src_path))
        if self._root.name in map(os.path.basename, paths):
            claim = os.path.realpath(self._root) if _came_whole(event) else None
            self._ring("event", claim)

    def _hear_overflow(self) -> None:
        # watchdog replaces its watches now, and hears nothing of what happens meanwhile. Armed
        # anew, and before the look that this causes, nothing falls between.
        self._armed_for = _UNARMED
        self._ring("overflow", None)

    def _say(self, words: str) -> None:
        if words and words != self._said:
            _log.warning("source.polling: %s: %s", self._root, words)
        self._said = words


def _came_whole(event: fs.FileSystemEvent) -> str | None:
    """The path that this event made appear in one step: by a rename, or as a link.

    A folder that is made (not renamed) comes empty. A file's creation matters only where the
    path turns out to be a folder, and then it was a link to one.
    """
    if isinstance(event, fs.FileSystemMovedEvent):
        return os.fsdecode(event.dest_path) or None
    return os.fsdecode(event.src_path) if isinstance(event, fs.FileCreatedEvent) else None


class _Ear(fs.FileSystemEventHandler):
    """Hands on every event as it is."""

    def __init__(self, hear: Callable[[fs.FileSystemEvent], None]) -> None:
        self._hear = hear

    def dispatch(self, event: fs.FileSystemEvent) -> None:
        self._hear(event)


class _Overflows(logging.Handler):
    """watchdog tells of events the kernel dropped in its log and nowhere else."""

    def __init__(self, hear: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        if "overflow" in record.getMessage().lower():
            self._hear()


def _identity(root: Path) -> tuple[str, int, int] | None:
    real = os.path.realpath(root)
    try:
        status = os.stat(real)
    except OSError:
        return None
    return real, status.st_dev, status.st_ino


def remote_file_system(path: Path, mountinfo: str | None = None) -> str | None:
    """The type of the file system below `path` when others can change it unheard, else None."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    real, best, kind = Path(os.path.realpath(path)), -1, ""
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4]))
        if real.is_relative_to(point) and len(point.parts) >= best:  # the last mount covers others
            best, kind = len(point.parts), source.split()[0]
    return kind if _REMOTE.match(kind) else None


async def _in_thread[T](work: Callable[[], T]) -> T:
    """Run it in a thread; a cancel waits for its end, for a thread cannot be stopped."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen, and of no interest any more
        raise
