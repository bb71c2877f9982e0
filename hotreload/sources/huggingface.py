"""Checkpoints on a Hugging Face Hub: the commit a branch or tag means now is what is wanted.

Looks seldom and cheaply, resolves to a commit once, and hands over only what lies here verified.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hotreload.core.threads import in_thread
from hotreload.errors import BadRequest, CheckpointRejected, SourceUnavailable
from hotreload.events import Progress, Publish, SourceScanned, Waiting
from hotreload.sources.hub.client import SHA, Head, HubClient
from hotreload.sources.hub.download import Bytes, ContentOf, Download
from hotreload.sources.hub.faults import HubFault, Kind
from hotreload.sources.hub.patience import Asking, Patience
from hotreload.sources.hub.remedies import BY_SETTINGS, Remedies
from hotreload.sources.hub.select import SERVED_FILES
from hotreload.sources.hub.snapshots import Snapshot, Snapshots
from hotreload.types import Phase, Revision

TELL_SECONDS = 0.25
"""So often at most a download tells how far it is."""
LOOKS_APART = 0.5
"""Whoever wakes us, so much time lies between two looks."""
ANSWER_WITHIN = 20.0
"""So long whoever asks waits in all, in line and for each of the hub's addresses: the timeouts
of the client are for one connection and one read, and a hub that drips never comes to them."""
SOON = 5.0
"""An operator may ask so soon again what a hub did not answer."""


class HuggingFaceSource:
    """Wants the commit that a name in a repo means."""

    def __init__(
        self,
        repo: str,
        *,
        cache: Path,
        content_of: ContentOf,
        publish: Publish,
        revision: str = "main",
        poll: float = 60.0,
        allow: Sequence[str] = SERVED_FILES,
        endpoint: str | None = None,
        token: Callable[[], str | None] = lambda: None,
        kept: Callable[[], Collection[str]] | None = None,
        folders: Collection[Path] = (),
        remedies: Remedies = BY_SETTINGS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repo, self._revision, self._allow = repo, revision, allow
        self._patience = Patience(poll, clock=clock)
        self._client = HubClient(
            repo,
            endpoint=endpoint,
            token=token,
            limited=self._patience.be_silent,
            remedies=remedies,
        )
        self._snapshots = Snapshots(cache, repo, remedies)
        self._content_of, self._publish, self._kept = content_of, publish, kept
        self._folders, self._named = folders, dict[str, Path]()
        self._asking, self._fetching = asyncio.Lock(), asyncio.Lock()
        self._woken, self._closed, self._cause = asyncio.Event(), asyncio.Event(), "start"
        self._waiting: str | None = None
        self._is_failing = False

    async def wanted(self) -> AsyncIterator[Revision]:
        """Yield the commit the name means, now and whenever it becomes another one.

        While the hub cannot be asked, what it meant last is wanted, if it lies here verified.
        """
        wished = None
        while not self._closed.is_set():
            self._woken.clear()
            head, pause = await self._look()
            if head is None and wished is None:
                head = await _in_thread(lambda cancel: self._last_known())
            if head is not None and head != wished:
                wished = head
                yield self._named_revision(head, self._revision)
            await self._sleep(pause)

    async def fetch(self, revision: Revision) -> Path:
        """The folder of the commit's verified files; downloads what is missing of it."""
        if (folder := self._named.get(revision.id)) is not None:
            return folder
        if not SHA.fullmatch(revision.id):  # the model's folder, which was there once
            raise SourceUnavailable(f"{revision} is no commit of {self._repo}, and not here")
        kept = {*self._kept(), revision.id} if self._kept is not None else None
        async with self._fetching:
            snapshot = await _in_thread(
                lambda cancel: self._sound_snapshot(revision.id, kept, cancel)
            )
            if snapshot is None:
                snapshot = await self._download(revision, kept)
            return snapshot.folder

    async def resolve(self, name: str | None) -> Revision:
        """The commit an operator names: a branch, tag, commit, `org/name@` before it, or a folder.

        None asks the hub for the newest.
        """
        name = (name or self._revision).removeprefix(f"{self._repo}@")
        if name.startswith("/"):
            return await self._resolve_folder(Path(name))
        if "@" in name or name == self._repo or not name.isprintable():
            raise BadRequest(f"{name!r}: give a branch, tag or commit of {self._repo}")
        is_sha = SHA.fullmatch(name) is not None
        if is_sha and await _in_thread(lambda cancel: self._snapshots.find(name)) is not None:
            return self._named_revision(name, name)
        return self._named_revision(await self._ask_for_operator(name), name)

    def content_of(self, revision: Revision) -> str:
        """The content id that the revision's files had when they were verified."""
        snapshot = self._snapshots.find(revision.id)
        return snapshot.content if snapshot is not None else revision.id

    def wake(self, cause: str = "request") -> None:
        """Ask the hub now, unless it wants to be left alone."""
        self._cause = cause
        self._woken.set()

    async def close(self) -> None:
        """End `wanted`."""
        self._closed.set()
        self._woken.set()

    # --- looking -----------------------------------------------------------------------

    async def _look(self) -> tuple[str | None, float]:
        """What the name means now, if the hub tells, and how long not to ask again."""
        cause, self._cause = self._cause, "rescan"
        try:
            head = await self._ask(self._revision)
        except SourceUnavailable as fault:
            pause, self._is_failing = self._pause_after(fault), True
            self._publish(SourceScanned(cause, str(fault)))
            self._say(f"{fault}; {_next_time(fault, pause)}")
            return None, pause
        self._is_failing = False
        self._publish(SourceScanned(cause))
        self._say(None)
        with suppress(OSError):  # a disk that refuses costs a start without the hub, no more
            await _in_thread(lambda cancel: self._snapshots.note_head(self._revision, head.sha))
        return head.sha, self._patience.after_answer(head.limit)

    def _pause_after(self, fault: SourceUnavailable) -> float:
        if not isinstance(fault, HubFault):  # the token's file
            fault = HubFault(str(fault), Kind.DENIED)
        return self._patience.after_fault(fault)

    async def _ask_for_operator(self, name: str) -> str:
        """The commit. What passes says when to ask again; an answer ends the poll's own waiting."""
        try:
            head = await self._ask(name)
        except HubFault as fault:
            if fault.kind is not Kind.DENIED:
                fault.retry_after = max(self._patience.silence, SOON)
            raise
        if self._is_failing:  # the hub is back, or the token good again
            self.wake()
        return head.sha

    async def _ask(self, revision: str) -> Head:
        """One at a time, and nobody waits for ever behind one that gets no answer."""
        name = f"{self._repo}@{revision}"
        self._respect_silence(name)
        limit = asyncio.timeout(ANSWER_WITHIN)
        try:
            async with limit, self._asking:
                self._respect_silence(name)  # whoever was before us may have been told
                return await self._head(revision)
        except TimeoutError:
            if not limit.expired():
                raise
            words = f"{name}: the hub does not answer in time: nothing for {ANSWER_WITHIN:g} s"
            raise HubFault(words) from None

    async def _head(self, revision: str) -> Head:
        try:
            return await self._talk(lambda cancel: self._client.head(revision))
        except HubFault as fault:
            self._patience.heed(fault)
            raise

    def _respect_silence(self, name: str) -> None:
        if (silence := self._patience.silence) > 0:
            words = f"{name}: the hub wants to be left alone for {silence:.0f} s more"
            raise HubFault(words, Kind.LIMITED, retry_after=silence)

    async def _talk[T](self, work: Callable[[threading.Event], T]) -> T:
        """Speak with the hub in a thread, which is left behind when it does not answer."""

        def run(cancel: threading.Event) -> T:
            try:
                return work(cancel)
            finally:
                self._client.hang_up()

        # What a slow hub holds up says nothing about the disk: a rollback is read all the same.
        what = f"a request to the hub for {self._repo}"
        return await in_thread(run, leave_as=what, is_read=False)

    async def _sleep(self, pause: float) -> None:
        """Until it is time, or somebody wakes us, and the hub would not mind."""
        least = max(self._patience.silence, min(LOOKS_APART, pause))
        await _set_within(self._closed, least)
        if not self._closed.is_set():
            await _set_within(self._woken, pause - least)
            await _set_within(self._closed, self._patience.silence)  # asked for meanwhile

    def _say(self, waiting: str | None) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._publish(Waiting(waiting))

    def _last_known(self) -> str | None:
        sha = self._snapshots.last_head(self._revision)
        return sha if sha and self._snapshots.find(sha) else None

    # --- names -------------------------------------------------------------------------

    def _named_revision(self, sha: str, name: str) -> Revision:
        short = name[:12] if SHA.fullmatch(name) else name
        return Revision(sha, f"{self._repo}@{short}")

    async def _resolve_folder(self, folder: Path) -> Revision:
        """A snapshot's folder names its commit; the model's folder is named by its bytes."""
        if folder.parent == self._snapshots.folder and SHA.fullmatch(folder.name):
            return self._named_revision(folder.name, folder.name)
        if folder not in self._folders:
            raise BadRequest(
                f"{folder}: this daemon follows {self._repo}; give a branch, tag or commit"
            )
        id = await _in_thread(lambda cancel: self._content_of(folder, cancel))
        self._named[id] = folder
        return Revision(id, folder.name)

    # --- fetching ----------------------------------------------------------------------

    def _sound_snapshot(
        self, sha: str, kept: Collection[str] | None, cancel: threading.Event
    ) -> Snapshot | None:
        """The commit's snapshot, if it still holds the bytes that were verified."""
        snapshot = self._snapshots.find(sha)
        try:
            if snapshot is None or self._content_of(snapshot.folder, cancel) != snapshot.content:
                return None
        except CheckpointRejected:  # it cannot be read; the hub still has it
            return None
        if kept is not None and not cancel.is_set():
            with suppress(SourceUnavailable, OSError), self._snapshots.locked():
                self._snapshots.prune(kept)
        return snapshot

    async def _download(self, revision: Revision, kept: Collection[str] | None) -> Snapshot:
        self._respect_silence(str(revision))
        count = Bytes()

        def run(cancel: threading.Event) -> Snapshot:
            return Download(
                self._client,
                self._snapshots,
                revision.id,
                allow=self._allow,
                kept=kept,
                content_of=self._content_of,
                bytes=count,
                cancel=cancel,
            ).run()

        async with self._telling(revision, count):
            try:
                snapshot = await self._talk(run)
            except HubFault as fault:
                pause = self._patience.after_fault(fault, Asking.DOWNLOAD)
                if fault.kind is not Kind.PASSING:
                    fault.retry_after = pause
                raise
        self._patience.after_download()
        return snapshot

    @asynccontextmanager
    async def _telling(self, revision: Revision, count: Bytes) -> AsyncIterator[None]:
        """Tell how far the download is, from its first moment to its last."""
        told: tuple[int, int] | None = None

        def tell() -> None:
            nonlocal told
            if told is None and count.total:  # or what came before the first look is not counted
                told = (count.there, count.total)
                self._publish(Progress(revision, Phase.FETCHING, *told))
            now = (count.done, count.total)
            if now != told and count.total:
                told = now
                self._publish(Progress(revision, Phase.FETCHING, *now))

        async def go_on() -> None:
            while True:
                tell()
                await asyncio.sleep(TELL_SECONDS)

        telling = asyncio.create_task(go_on(), name="tell the progress")
        try:
            yield
        finally:
            telling.cancel()
            tell()


def _next_time(fault: SourceUnavailable, pause: float) -> str:
    if fault.code == Kind.DENIED.value:
        return f"asked again in {pause / 60:.0f} min, or at once by SIGHUP"
    return "asked again by itself"


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()


async def _in_thread[T](work: Callable[[threading.Event], T]) -> T:
    return await in_thread(work, leave_as="a look at the hub's cache")
