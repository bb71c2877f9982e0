"""Wakes the source early: inotify reports changes of a folder and below it.

The alarm may miss changes, so nothing relies on it: only a look finds checkpoints.
"""

import logging
import os
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from watchdog import events as fs
from watchdog.observers.inotify import InotifyObserver

from hotreload.facts.files import mount_of

_log = logging.getLogger("hotreload.sources.alarm")
_EMITTER_LOG = logging.getLogger("watchdog.observers.inotify")
_READER_LOG = logging.getLogger("watchdog.observers.inotify_c")
_REMOTE = re.compile(r"nfs|cifs|smb|9p$|afs|ceph|gluster|lustre|gpfs|beegfs|virtiofs|fuse\.")
_RETRY = 1.0
_UNARMED = object()

_KINDS: list[type[fs.FileSystemEvent]] = [
    fs.DirMovedEvent,
    fs.FileMovedEvent,
    fs.DirCreatedEvent,
    fs.FileCreatedEvent,
    fs.DirDeletedEvent,
    fs.FileDeletedEvent,
    fs.FileClosedEvent,  # closed by a writer; a reader, such as we, makes no such event
]

Ring = Callable[[str, str | None], None]
"""Called from any thread, with the cause and the path that appeared in one step, if one did."""


class Alarm:
    """Calls `ring` when something changes at the root or below it; may miss events at any time."""

    def __init__(self, root: Path, ring: Ring) -> None:
        self._root, self._ring = root, ring
        self._observer: InotifyObserver | None = None
        self._armed_for: object = _UNARMED
        self._not_before, self._pause = 0.0, _RETRY
        self._said = ""

    def ensure(self) -> None:
        """Arm; arm again when the root is another folder than before or a thread has died."""
        now, root = time.monotonic(), _identity(self._root)
        if (root == self._armed_for and self._is_alive()) or now < self._not_before:
            return
        self.stop()
        try:
            remote = remote_file_system(self._root)
            self._armed_for = root  # set first: an overflow from here on unsets it
            if remote is None:
                self._arm(root)
            self._pause = _RETRY
            self._say(f"{remote} does not tell of changes made elsewhere" if remote else "")
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could start
            self.stop()
            self._not_before, self._pause = now + self._pause, min(self._pause * 2, 60.0)
            self._say(f"no inotify: {error}; see fs.inotify.max_user_watches")

    def stop(self) -> None:
        """Stop and join every thread."""
        observer, self._observer, self._armed_for = self._observer, None, _UNARMED
        try:
            if observer is not None:
                observer.stop()
                if observer.is_alive():
                    observer.join()
        finally:
            _READER_LOG.removeFilter(self._look_for_overflow)

    def _arm(self, root: "tuple[str, int, int] | None") -> None:
        _READER_LOG.addFilter(self._look_for_overflow)
        _EMITTER_LOG.addFilter(_is_worth_a_line)
        # watchdog 7.1 finds folders made quickly inside one another twice; the second time adds
        # nothing.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, r"watchdog\.")
        # Full events distinguish a folder that was renamed into the root from one made there.
        self._observer = InotifyObserver(generate_full_events=True)
        if self._root.parent.is_dir():
            # A watch on the root misses that the root is made, renamed or, if it is a link, led
            # elsewhere.
            beside = _Handler(self._note_beside)
            self._observer.schedule(beside, str(self._root.parent), event_filter=_KINDS)
        if root is not None:
            inside = _Handler(self._note)
            self._observer.schedule(inside, root[0], recursive=True, event_filter=_KINDS)
        self._observer.start()

    def _is_alive(self) -> bool:
        if self._observer is None:
            return True  # the folder is polled, so no thread is needed
        reader = getattr(self._observer, "_inotify_fd", None)  # watchdog 7.1: a thread of its own
        threads = [self._observer, *self._observer.emitters, *([reader] if reader else [])]
        return all(thread.is_alive() for thread in threads)

    def _note(self, event: fs.FileSystemEvent) -> None:
        self._ring("event", _came_whole(event))

    def _note_beside(self, event: fs.FileSystemEvent) -> None:
        paths = (os.fsdecode(event.dest_path), os.fsdecode(event.src_path))
        if self._root.name in map(os.path.basename, paths):
            claim = os.path.realpath(self._root) if _came_whole(event) else None
            self._ring("event", claim)

    def _look_for_overflow(self, record: logging.LogRecord) -> bool:
        """Notice that the kernel dropped events: only the log of watchdog says it."""
        if "overflow" in record.getMessage().lower():
            # watchdog now replaces its watches and misses events meanwhile. The next look arms the
            # alarm again before it looks, so it finds what was missed.
            self._armed_for = _UNARMED
            self._ring("overflow", None)
        return True

    def _say(self, words: str) -> None:
        if words and words != self._said:
            _log.warning("source.polling", extra={"path": str(self._root), "why": words})
        self._said = words


class _Handler(fs.FileSystemEventHandler):
    """Passes every event on unchanged."""

    def __init__(self, note: Callable[[fs.FileSystemEvent], None]) -> None:
        self._note = note

    def dispatch(self, event: fs.FileSystemEvent) -> None:
        self._note(event)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    # An event came while watchdog 7.1 was being stopped; no order of stopping avoids that.
    return "called when the thread is inactive" not in record.getMessage()


def _came_whole(event: fs.FileSystemEvent) -> str | None:
    """Return the path that appeared in one step: by a rename, or as a link.

    A folder that is made (not renamed) comes empty. A file's creation matters only where the
    path turns out to be a folder, and then it was a link to one.
    """
    if isinstance(event, fs.FileSystemMovedEvent):
        return os.fsdecode(event.dest_path) or None
    return os.fsdecode(event.src_path) if isinstance(event, fs.FileCreatedEvent) else None


def _identity(root: Path) -> tuple[str, int, int] | None:
    real = os.path.realpath(root)
    try:
        status = os.stat(real)
    except OSError:
        return None
    return real, status.st_dev, status.st_ino


def remote_file_system(path: Path, table: str | None = None) -> str | None:
    """Return the file system's type if other machines can change it without an event, else None."""
    kind = mount_of(path, table).kind
    return kind if _REMOTE.match(kind) else None
