"""Follows a repo on a Hugging Face Hub, and wishes for the commit that its branch or tag means now.

Asks the hub seldom and cheaply, and hands over only files that lie on this disk, verified.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from hotreload.checkpoint.digests import Digests, content_id
from hotreload.checkpoint.survey import survey
from hotreload.core.progress import publish_progress
from hotreload.errors import BadRequest, SourceUnavailable
from hotreload.events import Progress, Publish, SourceScanned, Wait
from hotreload.facts.listed import Listed
from hotreload.facts.names import DEFAULT_BRANCH
from hotreload.sources.hub.client import SHA, Head, HubClient, HubOptions, usual_token
from hotreload.sources.hub.download import Download, DownloadedBytes
from hotreload.sources.hub.faults import BY_OPTIONS, FaultKind, HubCall, HubFault, Patience
from hotreload.sources.hub.snapshots import Snapshot, Snapshots, list_commits
from hotreload.sources.place import folder_below
from hotreload.threads import in_thread, wait_at_most
from hotreload.types import Phase, Revision

LOOKS_APART = 0.5
"""The fewest seconds between two looks, however often the source is woken."""
ANSWER_WITHIN = 20.0
"""Seconds a caller waits for an answer in all: in line, and for each of the hub's addresses. The
client's own timeouts cover one connection and one read, and a hub that drips never reaches them."""
SOON = 5.0
"""Seconds until an operator may ask again what the hub did not answer."""


class HuggingFaceSource:
    """A repo on a hub, followed by a branch, tag or commit name."""

    def __init__(
        self,
        repo: str,
        options: HubOptions,
        *,
        cache: Path,
        digests: Digests,
        publish: Publish,
        kept: Callable[[], Collection[str]] | None = None,
        folders: Collection[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repo, self._revision, self._allow = repo, options.revision, options.allow
        self._patience = Patience(options.poll, clock=clock)
        self._client = HubClient(repo, options, self._patience.be_silent)
        self._snapshots = Snapshots(
            cache, repo, options.remedies, digests=digests, reads_once=options.reads_once
        )
        self._digests, self._publish, self._kept = digests, publish, kept
        self._folders, self._named = folders, dict[str, Path]()
        self._asking, self._fetching = asyncio.Lock(), asyncio.Lock()
        self._woken, self._closed, self._cause = asyncio.Event(), asyncio.Event(), "start"
        self._waiting: str | None = None
        self._is_failing = False
        self._wished: str | None = None
        self._here: list[tuple[Snapshot, float]] = []

    async def follow_newest(self) -> AsyncIterator[Revision]:
        """Yield the commit the name means, now and whenever it becomes another one.

        While the hub has not answered yet, the commit it named last is wanted, if that lies here.
        """
        wished = None
        while not self._closed.is_set():
            self._woken.clear()
            head, pause = await self._look()
            if head is None and wished is None:
                head = await _in_thread(lambda cancel: self._last_known())
            await self._list_snapshots()
            if head is not None and head != wished:
                wished = self._wished = head
                yield self._named_revision(head, self._revision)
            await self._sleep(pause)

    async def fetch(self, revision: Revision) -> Path:
        """Return the folder of the commit's verified files; downloads the missing ones."""
        if (folder := self._named.get(revision.id)) is not None:
            return folder
        if not SHA.fullmatch(revision.id):  # a folder that an earlier process resolved
            words = f"{revision} is not a commit of {self._repo}, and no folder here has it"
            raise SourceUnavailable(words)
        kept = {*self._kept(), revision.id} if self._kept is not None else None
        async with self._fetching:
            snapshot = await _in_thread(
                lambda cancel: self._sound_snapshot(revision.id, kept, cancel)
            )
            if snapshot is None:
                snapshot = await self._download(revision, kept)
            await self._list_snapshots()
            return snapshot.folder

    async def resolve(self, name: str | None) -> Revision:
        """Return the revision an operator names: a branch, tag, commit, or one of our folders.

        `org/name@` may stand before the name. None asks the hub for the newest.
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
        """Return the content id of the revision's files; one made by a stat, if not read yet."""
        return self._snapshots.content_of(revision.id) or revision.id

    def list_seen(self) -> list[Listed]:
        """List the wished commit, and those that lie here; for any thread, reads nothing."""
        return list_commits(self._wished, self._here, lambda sha: self._named_revision(sha, sha))

    def list_ids(self) -> list[str]:
        """List the ids of the wished commit, and of those that lie here; for any thread."""
        return [each.revision.id for each in self.list_seen() if each.revision is not None]

    def wake(self, cause: str = "request") -> None:
        """Ask the hub now, unless it is rate-limiting us."""
        if self._cause == "rescan":  # the first cause since the last look stays
            self._cause = cause
        self._woken.set()

    async def close(self) -> None:
        """End `follow_newest`."""
        self._closed.set()
        self._woken.set()

    # --- looking -----------------------------------------------------------------------

    async def _look(self) -> tuple[str | None, float]:
        """Return the commit that the name means now (None: no answer), and how long to wait."""
        cause, self._cause = self._cause, "rescan"
        try:
            head = await self._ask(self._revision)
        except SourceUnavailable as fault:
            # A fault of another kind: the token's file cannot be read.
            known = fault if isinstance(fault, HubFault) else HubFault(str(fault), FaultKind.DENIED)
            pause, self._is_failing = self._patience.after_fault(known), True

            self._publish(SourceScanned(cause, str(fault)))
            self._report_waiting(f"{fault}; {_next_time(fault, pause)}")
            return None, pause
        self._is_failing = False
        self._publish(SourceScanned(cause))
        self._report_waiting(None)
        with suppress(OSError):  # without the note only a start without the hub is lost
            await _in_thread(lambda cancel: self._snapshots.note_head(self._revision, head.sha))
        return head.sha, self._patience.after_answer(head.limit)

    async def _ask_for_operator(self, name: str) -> str:
        """Return the commit; an answer ends the poll's wait. A fault has a time to ask again."""
        try:
            head = await self._ask(name)
        except HubFault as fault:
            if fault.kind is not FaultKind.DENIED:
                fault.retry_after = max(self._patience.silence, SOON)
            raise
        if self._is_failing:  # the hub is back, or the token good again
            self.wake()
        return head.sha

    async def _ask(self, revision: str) -> Head:
        """Ask one question at a time; none waits for ever behind one that gets no answer."""
        name = f"{self._repo}@{revision}"
        self._respect_silence(name)
        limit = asyncio.timeout(ANSWER_WITHIN)
        try:
            async with limit, self._asking:
                self._respect_silence(name)  # the answer before ours may have asked for silence
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
            words = f"{name}: the hub is rate-limiting us for {silence:.0f} s more"
            raise HubFault(words, FaultKind.LIMITED, retry_after=silence)

    async def _talk[T](self, work: Callable[[threading.Event], T]) -> T:
        """Speak with the hub in a thread, which is left behind if the hub does not answer."""

        def run(cancel: threading.Event) -> T:
            try:
                return work(cancel)
            finally:
                self._client.hang_up()

        # A thread that a slow hub holds up does not use the disk: later reads of the disk, for a
        # rollback for example, need not wait for its end.
        what = f"a request to the hub for {self._repo}"
        return await in_thread(run, leave_as=what, is_read=False)

    async def _sleep(self, pause: float) -> None:
        """Sleep until the next look is due or a wake-up, and the hub may be asked again."""
        least = max(self._patience.silence, min(LOOKS_APART, pause))
        await wait_at_most(least, self._closed)
        if not self._closed.is_set():
            await wait_at_most(pause - least, self._woken)
            await wait_at_most(self._patience.silence, self._closed)  # new since then

    def _report_waiting(self, waiting: str | None) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._publish(Wait(waiting))

    async def _list_snapshots(self) -> None:
        self._here = await _in_thread(lambda cancel: self._snapshots.by_age())

    def _last_known(self) -> str | None:
        sha = self._snapshots.last_head(self._revision)
        return sha if sha and self._snapshots.find(sha) else None

    # --- names -------------------------------------------------------------------------

    def _named_revision(self, sha: str, name: str) -> Revision:
        short = name[:12] if SHA.fullmatch(name) else name
        return Revision(sha, f"{self._repo}@{short}")

    async def _resolve_folder(self, folder: Path) -> Revision:
        """Name a snapshot's folder by its commit, and any other folder by its bytes."""
        if folder.parent == self._snapshots.folder and SHA.fullmatch(folder.name):
            return self._named_revision(folder.name, folder.name)
        if folder not in self._folders:
            instead = f"this daemon follows {self._repo}; give a branch, tag or commit"
            below = partial(folder_below, self._folders, folder, instead)
            folder = await _in_thread(lambda cancel: below())
        id = await _in_thread(lambda cancel: content_id(survey(folder), self._digests, cancel))
        self._named[id] = folder
        return Revision(id, folder.name)

    # --- fetching ----------------------------------------------------------------------

    def _sound_snapshot(
        self, sha: str, kept: Collection[str] | None, cancel: threading.Event
    ) -> Snapshot | None:
        """Return the commit's snapshot if it still holds the hub's bytes; prune the others."""
        snapshot = self._snapshots.find_sound(sha, cancel)
        if snapshot is not None and kept is not None and not cancel.is_set():
            with suppress(SourceUnavailable, OSError), self._snapshots.hold_lock():
                self._snapshots.prune(kept)
        return snapshot

    async def _download(self, revision: Revision, kept: Collection[str] | None) -> Snapshot:
        self._respect_silence(str(revision))
        count = DownloadedBytes()

        def run(cancel: threading.Event) -> Snapshot:
            download = Download(
                self._client, self._snapshots, revision.id, self._allow, kept, count, cancel
            )
            return download.run()

        async with publish_progress(count.look, revision, self._publish, Phase.FETCHING):
            try:
                snapshot = await self._talk(run)
            except HubFault as fault:
                pause = self._patience.after_fault(fault, HubCall.DOWNLOAD)
                if fault.kind is not FaultKind.PASSING:
                    fault.retry_after = pause
                raise
            finally:  # a short download was not looked at: its base, and its end
                for now in dict.fromkeys((count.look(), count.look())):
                    if now is not None:
                        self._publish(Progress(revision, Phase.FETCHING, now.done, now.of))
        self._patience.after_download()
        return snapshot


def _next_time(fault: SourceUnavailable, pause: float) -> str:
    if fault.code == FaultKind.DENIED.value:
        return f"the daemon asks again in {pause / 60:.0f} min, or at once after SIGHUP"
    return "the daemon asks again by itself"


async def _in_thread[T](work: Callable[[threading.Event], T]) -> T:
    return await in_thread(work, leave_as="a look at the hub's cache")


async def download(
    name: str,
    *,
    cache: Path,
    digests: Digests,
    publish: Publish,
    token: Callable[[], str | None] = usual_token,
) -> Path:
    """Download what `org/name@revision` means now; returns its folder, every file verified.

    It is for commands that run without a daemon: `hotreload check`, `diff` and `swap`.
    """
    repo, _, revision = name.partition("@")
    options = HubOptions(
        revision=revision or DEFAULT_BRANCH, poll=math.inf, token=token, remedies=BY_OPTIONS
    )
    source = HuggingFaceSource(repo, options, cache=cache, digests=digests, publish=publish)
    return await source.fetch(await source.resolve(None))
