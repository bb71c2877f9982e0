"""Troubles that a start finds, or would find; each lasts until it is mended or decided.

`Doubt`: the weights fail the probe although they were live before, and neither they nor the engine
have changed: they answer, and the doubt is reported. `Gone`: the last live weights cannot be
loaded, and the start waits, or an older generation answers in their place. `FilesGone`: a restart
or a rollback would not find its files, reported before they are needed.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hotreload import events
from hotreload.core.engines.replica import Replica
from hotreload.core.judge import FIRST_ANSWER_SECONDS, ask_probes
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.ports import Source
from hotreload.errors import CheckpointRejected, EngineLost, TryAgain
from hotreload.json_fields import iso
from hotreload.life.running_engine import RunningEngine
from hotreload.life.start.whereabouts import Absent, files_in, source_has
from hotreload.threads import left_behind, wait_at_most
from hotreload.troubles import FILES_GONE, OLDER_ANSWERS, PROBE_DOUBTED, WAITS_FOR_FILES, Trouble
from hotreload.types import Outcome, Revision

CORRECT_THE_PROBE = (
    "correct that [[probe]] and send SIGHUP (systemctl reload hotreload), which asks it again; if "
    "the answer is bad indeed, look at the engine, its version and the device"
)


class Doubt:
    """Sees every event; lasts as long as the doubted generation answers and fails the probes."""

    def __init__(self, publish: events.Publish) -> None:
        self._trouble = Trouble(PROBE_DOUBTED, publish)
        self._of: PastGeneration | None = None
        self._asked = asyncio.Event()
        self._is_over = False
        """True once the start is over: another attempt's weights may take its place."""
        self._is_reported = False

    def whether(self, live: PastGeneration) -> None:
        """Have these weights asked for whole answers, too, after the start has compiled.

        Beside a client's request such an answer would make a batch of two.
        """
        self._of = live

    def of(self, live: PastGeneration, verdict: CheckpointRejected) -> None:
        """Report that these weights answer although they fail the probes."""
        self._of, self._is_reported = live, True
        words = (
            f"{verdict}; generation {live.number}, {live.revision}, live since {iso(live.since)}, "
            "answers all the same: neither its weights nor the engine have changed"
        )
        self._trouble.set(words, CORRECT_THE_PROBE)

    def observe(self, event: events.Event) -> None:
        """Ask again when the probes change; end the doubt when other weights go live."""
        match event:
            case events.SettingsRead(changed) if "[[probe]]" in changed:
                self._asked.set()
            case events.Warmup(is_over=True) if not self._is_reported:
                self._asked.set()
            case events.AttemptFinished(attempt) if self._is_over:
                if attempt.outcome is Outcome.LIVE:
                    self._end()

    def _end(self) -> None:
        self._of, self._is_reported = None, False
        self._trouble.set(None)

    async def run(
        self, replicas: Iterable[Replica[RunningEngine]], within: Callable[[], float]
    ) -> NoReturn:
        """Ask the live weights again each time the probes change, for ever."""
        self._is_over = True
        while True:
            await self._asked.wait()
            self._asked.clear()
            for replica in list(replicas)[:1]:  # all hold the same weights
                await self._ask_again(replica.engine, within())

    async def _ask_again(self, engine: RunningEngine, within: float) -> None:
        """Ask for whole answers; unless there is a doubt already, they may take long."""
        doubted = self._of
        if doubted is None:
            return
        try:
            if self._is_reported:
                verdict = await ask_probes(engine, within, "[reload] probe_timeout")
            else:
                verdict = await ask_probes(engine, FIRST_ANSWER_SECONDS)
        except (EngineLost, TryAgain):
            return  # others look after the engine
        if self._of is not doubted:
            return  # others went live meanwhile
        if verdict is None:
            self._end()
            return
        self.of(doubted, verdict)
        # A nonfinite answer may have left NaN in the cache. In a busy engine the next withheld
        # answer has the cache cleaned.
        with suppress(EngineLost, TryAgain):
            await engine.switch.scrub()


TO_GO_ON = (
    "bring the files back, or mount what they lie on, and the start goes on by itself, as it does "
    'with a newer checkpoint; or decide what answers instead: [engine] boot = "model" starts from '
    'the model, [engine] when_gone = "older" from an older checkpoint'
)
TO_END_IT = (
    "bring its files back and hotreload makes it live again; if the older one is meant, "
    "`hotreload pin`"
)


class Gone:
    """Sees every event; its troubles end when the files are back or an operator decides."""

    def __init__(self, publish: events.Publish) -> None:
        self._publish = publish
        self._waits = Trouble(WAITS_FOR_FILES, publish)
        self._older = Trouble(OLDER_ANSWERS, publish)
        self._answers: Revision | None = None

    def waits(self, meant: PastGeneration | None, why: Sequence[str]) -> None:
        """Report that the start waits; `why` has the refusal of each candidate."""
        name = _describe(meant) if meant else "a checkpoint that was not refused"
        self._publish(events.Wait(f"{name}: {why[0]}", "start"))
        reasons = dict.fromkeys(why)
        self._waits.set(f"the start waits for {name}: {'; '.join(reasons)}", TO_GO_ON)

    def waits_no_more(self) -> None:
        """End the wait: a candidate answers."""
        self._waits.set(None)

    def answers(self, older: Revision, instead_of: PastGeneration, why: str) -> None:
        """Report that an older checkpoint answers in the place of the last live one."""
        self._answers = older
        words = f"{older} answers instead of {_describe(instead_of)}, which was live last: {why}"
        self._older.set(words, TO_END_IT)

    def observe(self, event: events.Event) -> None:
        """End the trouble once other weights were live, or an operator pins the older ones."""
        match event:
            case events.AttemptFinished(attempt):
                is_live = attempt.outcome is Outcome.LIVE and not attempt.revision.is_noise
                is_over = is_live and attempt.revision != self._answers
            case events.OperatorAsked(by, refusal=None):
                is_over = by.verb == "pin"
            case _:
                return
        if is_over:
            self._older.set(None)


def _describe(place: PastGeneration) -> str:
    return f"generation {place.number}, {place.revision}"


LOOK_FOR_FILES_SECONDS = 60.0
"""Seconds between two looks; a new live generation, or SIGHUP, makes it look at once."""

COPY_THEM_BACK = (
    "copy them back, or mount what they lie on; or make another checkpoint live before the next "
    "restart"
)


class FilesGone:
    """Sees every event; reports generations whose files are gone, as long as they matter."""

    def __init__(self, ledger: Ledger, source: Source, publish: events.Publish) -> None:
        self._ledger = ledger
        self._source = source
        self._trouble = Trouble(FILES_GONE, publish)
        self._names: dict[str, set[str]] = {}
        """The weight files of each folder when first seen."""
        self._wake = asyncio.Event()

    def observe(self, event: events.Event) -> None:
        """Look at once after an attempt, or after settings were read."""
        if isinstance(event, events.AttemptFinished | events.SettingsRead):
            self._wake.set()

    async def run(self, keeps: Callable[[PastGeneration], bool]) -> NoReturn:
        """Look for ever; `keeps` returns True if a rollback to a generation needs no files."""
        while True:
            self._wake.clear()
            await self.look(keeps)
            await wait_at_most(LOOK_FOR_FILES_SECONDS, self._wake)

    async def look(self, keeps: Callable[[PastGeneration], bool]) -> None:
        """Look for the files of each generation that matters, once."""
        matter = list(self._that_matter(keeps))
        known = {place.path for place, _ in matter}
        self._names = {path: names for path, names in self._names.items() if path in known}
        reasons = [
            f"generation {place.number}, {place.revision}: {why}; {so} cannot find it"
            for place, so in matter
            if (why := await self._why_gone(place)) is not None
        ]
        self._trouble.set("; ".join(reasons) or None, COPY_THEM_BACK if reasons else "")

    def _that_matter(
        self, keeps: Callable[[PastGeneration], bool]
    ) -> Iterator[tuple[PastGeneration, str]]:
        """Yield the generations that a restart or a rollback would load from files."""
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
