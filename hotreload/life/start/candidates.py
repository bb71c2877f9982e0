"""The candidates of a start, the best first, and why each does not answer.

First the last live generation, else a newer checkpoint, else an older one in its place. The
configured model answers only if no checkpoint ever did: later its weights would surprise the
clients. This way a power cut loses no good checkpoint, and a bad one makes no restart loop.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hotreload.checkpoint.digests import content_id
from hotreload.checkpoint.findings import INCOMPATIBLE, most_telling
from hotreload.checkpoint.survey import survey
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.ports import Source
from hotreload.engine.upstream.build import DOES_NOT_START
from hotreload.errors import ConfigError, HotReloadError, SourceUnavailable
from hotreload.life.start.model_files import UNFIT_MODEL, kept_model
from hotreload.life.start.whereabouts import (
    Absent,
    files_in,
    is_newer,
    read_from_disk,
    require_disks,
)
from hotreload.settings.load import Settings
from hotreload.types import Revision

log = logging.getLogger("hotreload.boot")

FOR_NO_ENGINE = {UNFIT_MODEL, DOES_NOT_START}
"""Codes of weights that may be good, but that no engine can be started with."""

OF_THE_SETTINGS = FOR_NO_ENGINE | INCOMPATIBLE - {"missing"}
"""Codes of weights that are not served, and that returning files do not mend."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights that a start may serve; they are looked for when their turn comes."""

    why: str
    """Words for this candidate, in the log and the history."""
    find: Callable[[], Awaitable[Revision]]
    """Return the candidate's revision, or raise Absent."""
    fetch: Callable[[Revision], Awaitable[Path]]
    """Bring the candidate's files here; TryAgain or CheckpointRejected on failure."""
    is_configured: bool = False
    """True if it is the operator's own model."""
    instead_of: PastGeneration | None = None
    """The generation that should answer, if this candidate would answer in its place."""
    is_tried_once: bool = False
    """True if only changed files make another try worthwhile."""


class PassedBy(NamedTuple):
    """A candidate that does not answer, and why."""

    candidate: Candidate
    words: str
    code: str | None = None
    """None if it was not tried."""


def nothing_to_start_with(refusals: Sequence[PassedBy], others_were_live: bool) -> ConfigError:
    """Make the error of a start without candidates: the refusals, and the setting to change."""
    reasons = "\n  ".join(f"{refusal.candidate.why}: {refusal.words}" for refusal in refusals)
    if not others_were_live:
        words = "nothing to start with; put a sound checkpoint into [engine] model"
        return ConfigError(f"{words}\n  {reasons}", code=UNFIT_MODEL)
    words = (
        "what was live last cannot be served with [engine] model as it is; set that to the model "
        'that it belongs to, or [engine] boot = "model" to start without it'
    )
    return ConfigError(f"{words}\n  {reasons}")


class Candidates:
    """Lists the candidates from the ledger, the settings and the source; starts nothing."""

    def __init__(self, settings: Settings, ledger: Ledger, source: Source) -> None:
        self._ledger = ledger
        self._source = source
        self._model = settings.engine.model
        self._state = settings.state.directory
        self._starts_from_model = settings.engine.boot == "model" and self._model is not None
        self._may_be_older = settings.engine.when_gone == "older"
        is_folder = settings.source.kind == "directory"
        self._order = settings.source.order if is_folder else None
        """None for a hub, which lists its newest alone."""
        self._seen: dict[str, object] = {}
        self._failed: dict[str, tuple[object, str]] = {}
        self._absent: dict[str, str] = {}

    @property
    def must_wait(self) -> bool:
        """True if checkpoints were live: only one of them or a newer one may answer."""
        if self._model is None:
            return self._ledger.start_target is not None
        places = (place for place in self._ledger.generations if place.path)
        has_others = any(not self._is_the_model(place.revision) for place in places)
        return has_others and not self._starts_from_model

    def _is_the_model(self, revision: Revision) -> bool:
        places = (place for place in self._ledger.generations if place.revision == revision)
        return self._model is not None and any(p.path == str(self._model) for p in places)

    def list_all(self, newest: Revision | None = None) -> Iterator[Candidate]:
        """Yield every candidate, the best first; `newest` is the source's wish, if known."""
        meant = self._ledger.start_target
        if not self._starts_from_model:
            if meant is not None:
                yield from self._last_good(meant)
            why = "the newest checkpoint"
            if meant is not None and self._has_new_source(meant):
                why = f"{why} of {self._ledger.source}, where [source] was {meant.source} before"
            yield Candidate(why, partial(self._newest, why, newest, meant), self._source.fetch)
            if meant is not None and self._may_be_older:
                yield from self._instead_of(meant, newest)
        if self._model is not None and (not self.must_wait or self._is_meant(meant)):
            model = self._model
            yield Candidate(
                f"the configured model, {model}",
                partial(revision_of_model, model),
                partial(_lies_at, model),
                is_configured=True,
            )

    def _is_meant(self, meant: PastGeneration | None) -> bool:
        return meant is not None and self._is_the_model(meant.revision)

    def _last_good(self, place: PastGeneration) -> Iterator[Candidate]:
        why = f"the last good generation, {place.path}"
        find = partial(self._last_known, why, place)
        yield Candidate(why, find, partial(self._folder_of, place))
        # The copy here may be damaged; a hub still has the bytes. A copy that is gone was fetched.
        why = f"the last good generation, {place.revision}, fetched again"
        find = partial(self._where_it_lay, why, place)
        yield Candidate(why, find, self._source.fetch, is_tried_once=self._order is not None)

    def _instead_of(self, meant: PastGeneration, newest: Revision | None) -> Iterator[Candidate]:
        """Yield older generations, the newest first, then an older one that was never live."""
        for older in self._ledger.good:
            if older.revision != meant.revision and not self._is_no_fallback(older.revision):
                why = f"generation {older.number}, {older.path}"
                find = partial(self._where_it_lay, why, older)
                # A source fetches its newest alone, so older ones are taken from where they lay.
                yield Candidate(why, find, partial(_lies_at, older.path), instead_of=meant)
        find = partial(self._older, newest, meant)
        yield Candidate("an older checkpoint", find, self._source.fetch, instead_of=meant)

    def _is_no_fallback(self, revision: Revision) -> bool:
        return self.must_wait and self._is_the_model(revision)

    # --- finding one ---------------------------------------------------------------------

    async def _last_known(self, why: str, place: PastGeneration) -> Revision:
        """Find the last live generation; if its files are gone, ask the source for them once."""
        try:
            return await self._where_it_lay(why, place)
        except Absent:
            if why in self._failed:
                raise
            self._seen[why] = None
            return place.revision

    async def _where_it_lay(self, why: str, place: PastGeneration) -> Revision:
        return self._anew(why, place.revision, await files_in(Path(place.path)))

    def _has_new_source(self, meant: PastGeneration) -> bool:
        """Return True if the settings have named another source since; a pin holds all the same."""
        return not self._ledger.pinned and meant.source not in ("", self._ledger.source)

    async def _newest(
        self, why: str, wish: Revision | None, meant: PastGeneration | None
    ) -> Revision:
        """Return the source's newest, unless it is older than the last live generation."""
        try:
            revision = await self._resolve_newest(wish)
        except Absent as none:
            if meant is None or not self._has_new_source(meant):
                raise
            todo = f"put a sound checkpoint there, or set [source] to {meant.source} again"
            raise Absent(f"{why}: {none}; {todo}") from none
        if meant is not None and await self._is_older(revision, meant):
            words = f"{revision} is the newest, and would answer in the place of {meant.revision}"
            raise Absent(words)
        return self._anew(why, revision, revision)

    async def _older(self, wish: Revision | None, meant: PastGeneration) -> Revision:
        """Return the source's newest, if it is older than the last live one, and was never live."""
        revision = await self._resolve_newest(wish)
        was_live = self._ledger.past_of(revision) is not None
        if was_live or not await self._is_older(revision, meant):
            raise Absent(f"{revision} is the newest, and is listed already")
        return self._anew("an older checkpoint", revision, revision)

    async def _resolve_newest(self, wish: Revision | None) -> Revision:
        """Return the source's newest, unless it was refused or ended a process."""
        require_disks()
        try:
            revision = wish or await self._source.resolve(None)
        except HotReloadError as none:
            raise Absent(str(none)) from none
        ledger = self._ledger
        is_all_there_is = ledger.last_good is None and self._model is None
        has_crashed = revision.id in ledger.crashes and not is_all_there_is
        if has_crashed or revision.id in ledger.refused:
            raise Absent(f"{revision} is the newest, and was refused or ended a process")
        meant = ledger.start_target
        is_wished = meant is not None and (self._is_meant(meant) or self._has_new_source(meant))
        if self._is_no_fallback(revision) and not is_wished:
            raise Absent(f"{revision} is the newest, and the model that all began with")
        return revision

    async def _is_older(self, revision: Revision, meant: PastGeneration) -> bool:
        """Return True if the revision would replace the meant generation rather than follow it.

        A pin holds a generation against newer ones, too. What a new source has follows: its name in
        the settings is the operator's newest wish.
        """
        if revision == meant.revision or self._has_new_source(meant):
            return False
        if self._ledger.pinned or self._ledger.past_of(revision) is not None:
            return True
        if self._order is None or self._is_the_model(meant.revision):
            return False
        try:
            folder = await self._source.fetch(revision)
        except HotReloadError as gone:
            raise Absent(str(gone)) from gone
        return not await is_newer(self._order, folder, meant)

    # --- what has failed -----------------------------------------------------------------

    def log_absence(self, candidate: Candidate, words: str) -> None:
        """Write to the log that a candidate is not there, unless the last look said so too."""
        if self._absent.get(candidate.why) != words:
            log.info("boot.no_candidate", extra={"candidate": candidate.why, "why": words})
        self._absent[candidate.why] = words

    def _anew(self, why: str, revision: Revision, seen: object) -> Revision:
        """Return the revision; Absent if this candidate failed and nothing has changed since."""
        failed = self._failed.get(why)
        if failed is not None and failed[0] == seen:
            raise Absent(failed[1])
        self._seen[why] = seen
        return revision

    def note_failure(self, candidate: Candidate, words: str, *, is_final: bool) -> None:
        """Leave the candidate out until its files change."""
        self._absent.pop(candidate.why, None)
        seen = self._seen.get(candidate.why)
        if is_final or seen is None or candidate.is_tried_once:
            self._failed[candidate.why] = (seen, words)

    # --- fetching it ---------------------------------------------------------------------

    async def _folder_of(self, place: PastGeneration, revision: Revision) -> Path:
        """Return the folder of a generation; the source fetches its files if they are gone."""
        folder = Path(place.path)
        try:
            await files_in(folder)
        except Absent as absent:
            try:
                return await self._source.fetch(revision)
            except HotReloadError as gone:
                why = {"path": place.path, "why": str(gone)}
                log.warning("boot.last_good_is_gone", extra=why)
                raise SourceUnavailable(f"{absent}: {gone}") from gone
        return folder

    async def kept_model(self) -> Path | None:
        """Find the model files that earlier starts used, if no model is configured."""
        return await read_from_disk(self._state, lambda: kept_model(self._state))


async def _lies_at(path: str | Path, revision: Revision) -> Path:
    return Path(path)


async def revision_of_model(model: Path) -> Revision:
    """Name the weights in the operator's own model folder; ConfigError without any."""
    looked = await read_from_disk(model, lambda: survey(model))
    if looked.waiting_for is not None:
        why = most_telling(looked.findings).message if looked.findings else looked.waiting_for
        raise ConfigError(f"[engine] model: {model} has no weights to load: {why}")
    return Revision(await read_from_disk(model, lambda: content_id(looked)), model.name)
