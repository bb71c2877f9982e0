"""What a start may serve, the best first.

The last good generation, else the newest checkpoint, else an earlier generation, else the model
that the operator configured. So neither a power cut loses a good checkpoint nor a bad one makes a
restart loop.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotreload.checks.files import content_id, survey
from hotreload.checks.findings import most_telling
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.ports import Source
from hotreload.errors import ConfigError, HotReloadError, SourceUnavailable
from hotreload.life.model_files import kept_model
from hotreload.settings.load import Settings
from hotreload.threads import in_thread
from hotreload.types import Revision

log = logging.getLogger("hotreload.boot")


class Absent(Exception):
    """There is no such candidate, and nobody is at fault."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing a start may serve; it is looked for when its turn comes."""

    why: str
    """What this candidate is, in words for the log and the history."""
    find: Callable[[], Awaitable[Revision]]
    """Return its revision, or raise Absent."""
    fetch: Callable[[Revision], Awaitable[Path]]
    """Bring its files here; TryAgain or CheckpointRejected when that cannot be."""
    is_configured: bool = False
    """Whether it is the operator's own model, the last resort."""
    is_last_good: bool = False


class Candidates:
    """Lists the candidates from the ledger, the settings and the source; starts nothing."""

    def __init__(self, settings: Settings, ledger: Ledger, source: Source) -> None:
        self._ledger = ledger
        self._source = source
        self._model = settings.engine.model
        self._state = settings.state.directory
        self._starts_from_model = settings.engine.boot == "model"

    def known(self, newest: Revision | None = None) -> Iterator[Candidate]:
        """Every candidate, the best first; `newest` is the source's wish, if it is known."""
        place = self._ledger.last_good
        if self._model is None or not self._starts_from_model:
            if place is not None:
                yield from self._last_good(place)
            yield Candidate("the newest checkpoint", partial(self._newest, newest), self._fetched)
            for older in self._ledger.good[1:]:
                why = f"generation {older.number}, {older.path}"
                # A source fetches its newest alone, so older ones are taken from where they lay.
                yield Candidate(why, partial(_where_it_lay, older), partial(_lies_at, older.path))
        if self._model is not None:
            model = self._model
            yield Candidate(
                f"the configured model, {model}",
                partial(revision_of_model, model),
                partial(_lies_at, model),
                is_configured=True,
            )

    def _last_good(self, place: PastGeneration) -> Iterator[Candidate]:
        async def find() -> Revision:
            return place.revision

        why = f"the last good generation, {place.path}"
        yield Candidate(why, find, partial(self._folder_of, place), is_last_good=True)
        # The copy here may be damaged; a hub still has the bytes. A copy that is gone was fetched.
        why = f"the last good generation, {place.revision}, fetched again"
        yield Candidate(why, partial(_where_it_lay, place), self._fetched, is_last_good=True)

    async def _newest(self, wish: Revision | None) -> Revision:
        try:
            revision = wish or await self._source.resolve(None)
        except HotReloadError as none:
            raise Absent(str(none)) from none
        ledger = self._ledger
        is_all_there_is = ledger.last_good is None and self._model is None
        has_crashed = revision.id in ledger.crashes and not is_all_there_is
        if has_crashed or revision.id in ledger.refused:
            raise Absent(f"{revision} is the newest, and was refused or ended a process")
        return revision

    async def _folder_of(self, place: PastGeneration, revision: Revision) -> Path:
        """Where a generation's files lie; the source fetches them again if they are gone."""
        folder = Path(place.path)
        if not await reading(folder, lambda: os.path.exists(folder)):
            try:
                return await self._fetched(revision)
            except HotReloadError as gone:
                why = {"path": place.path, "why": str(gone)}
                log.warning("boot.last_good_is_gone", extra=why)
                raise SourceUnavailable(f"{place.path} is gone: {gone}") from gone
        return folder

    async def _fetched(self, revision: Revision) -> Path:
        return await self._source.fetch(revision)

    async def kept_model(self) -> Path | None:
        """The model's files that earlier starts were served with, where none is configured."""
        return await reading(self._state, lambda: kept_model(self._state))


async def _where_it_lay(place: PastGeneration) -> Revision:
    folder = Path(place.path)
    if not await reading(folder, folder.is_dir):
        raise Absent("it is gone")
    return place.revision


async def _lies_at(path: str | Path, revision: Revision) -> Path:
    return Path(path)


async def revision_of_model(model: Path) -> Revision:
    """What the weights in the operator's own model folder are called; ConfigError without any."""
    looked = await reading(model, lambda: survey(model))
    if looked.waiting_for is not None:
        why = most_telling(looked.findings).message if looked.findings else looked.waiting_for
        raise ConfigError(f"[engine] model: {model} has no weights to load: {why}")
    return Revision(await reading(model, lambda: content_id(looked)), model.name)


async def reading[T](what: Path, read: Callable[[], T]) -> T:
    """Read from a disk in a thread, which is left behind if it hangs."""
    return await in_thread(lambda cancel: read(), leave_as=f"a read of {what}")
