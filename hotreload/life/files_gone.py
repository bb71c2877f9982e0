"""Looks whether a restart or a rollback would find its files, before somebody needs them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.ports import Source
from hotreload.events import AttemptFinished, Event, Publish, SettingsRead
from hotreload.life.whereabouts import Absent, files_in, source_has
from hotreload.threads import left_behind
from hotreload.troubles import FILES_GONE, Trouble

LOOK_SECONDS = 60.0
"""How often it looks; a change of what is live, and SIGHUP, make it look at once."""

TODO = (
    "copy them back, or mount what they lie on; or make another checkpoint live before the next "
    "restart"
)


class FilesGone:
    """Sees every event; tells of generations whose files are gone as long as they matter."""

    def __init__(self, ledger: Ledger, source: Source, publish: Publish) -> None:
        self._ledger = ledger
        self._source = source
        self._trouble = Trouble(FILES_GONE, publish)
        self._names: dict[str, set[str]] = {}
        """The weight files that a folder had when they were seen first."""
        self._wake = asyncio.Event()

    def observe(self, event: Event) -> None:
        """Look at once after what may have changed what matters."""
        if isinstance(event, AttemptFinished | SettingsRead):
            self._wake.set()

    async def run(self, keeps: Callable[[PastGeneration], bool]) -> NoReturn:
        """Look for ever; `keeps` says whether a rollback to a generation needs no files."""
        while True:
            self._wake.clear()
            await self.look(keeps)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS)

    async def look(self, keeps: Callable[[PastGeneration], bool]) -> None:
        """Look for the files of each generation that matters, once."""
        matter = list(self._that_matter(keeps))
        known = {place.path for place, _ in matter}
        self._names = {path: names for path, names in self._names.items() if path in known}
        told = [
            f"generation {place.number}, {place.revision}: {why}; {so} cannot find it"
            for place, so in matter
            if (why := await self._why_gone(place)) is not None
        ]
        self._trouble.now("; ".join(told) or None, TODO if told else "")

    def _that_matter(
        self, keeps: Callable[[PastGeneration], bool]
    ) -> Iterator[tuple[PastGeneration, str]]:
        """What a restart would serve, and what a rollback would bring back from files."""
        ledger, live = self._ledger, self._ledger.live
        if ledger.last_good is not None:
            yield ledger.last_good, "a restart"
        before = ledger.past_before(live) if live is not None else None
        if before is not None and before != ledger.last_good and not keeps(before):
            yield before, "a rollback"

    async def _why_gone(self, place: PastGeneration) -> str | None:
        try:
            names = {name for name, *_ in await files_in(Path(place.path))}
        except Absent as gone:
            is_away = left_behind() is not None
            if not is_away and await source_has(self._source, place.revision):
                return None
            return str(gone)
        missing = self._names.setdefault(place.path, names) - names
        return f"{place.path} has no {', '.join(sorted(missing))} any more" if missing else None
