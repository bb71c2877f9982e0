"""The attempts and pins so far, and how their weights were loaded."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

from hotreload.attempts import PROBE, ROLLBACK, Attempt, By
from hotreload.core.ledger import note_evidence
from hotreload.events import AttemptEnd, AttemptFinished, Event, OperatorAsked
from hotreload.events.event import LateEvidence
from hotreload.json_fields import (
    ByFields,
    Fields,
    OwnAttemptFields,
    attempt_fields,
    by_fields,
    revision_fields,
)
from hotreload.picture.report import Family, counter, gauge
from hotreload.picture.words import AttemptWords, WordAttempt, attempt_words, plain
from hotreload.types import Generation, LoadFacts, Outcome

LOADERS = ("own", "upstream")


class AttemptFields(OwnAttemptFields):
    """An attempt that ended, and the generation whose place it took."""

    unproven: str | None
    replaced: Fields | None


class HistoryFields(TypedDict):
    """Attempts, and pins and unpins, newest first."""

    attempts: list[AttemptFields]
    pins: list[ByFields]


class History:
    """The last attempts, pins and unpins, newest first."""

    def __init__(
        self,
        attempts: Iterable[Attempt] = (),
        pins: Iterable[By] = (),
        *,
        word: Mapping[str, WordAttempt] | None = None,
        kept: int = 200,
    ) -> None:
        """`word` puts facts into words, by the names of judges; of others their own are said."""
        self.word = word or {}
        self._attempts = deque(attempts, maxlen=kept)
        own = (by for by in pins if by.verb != ROLLBACK)  # that one's attempt tells of it
        self._pins = deque(own, maxlen=kept)

    def observe(self, event: Event) -> None:
        """Take in an attempt that ended, evidence on it, or a pin or unpin, which makes none."""
        match event:
            case AttemptEnd(attempt):
                self._attempts.appendleft(attempt)
            case OperatorAsked(By("pin" | "unpin") as by, _, None):
                self._pins.appendleft(by)
            case LateEvidence(generation=generation, evidence=evidence):
                note_evidence(self._attempts, generation, evidence)

    @property
    def last(self) -> Attempt | None:
        """The attempt that ended last; dry runs are none."""
        return next((each for each in self._attempts if not each.dry_run), None)

    def last_of(self, name: str) -> Attempt | None:
        """The last attempt at the revision of this id or label; dry runs are none."""
        found = (each for each in tuple(self._attempts) if not each.dry_run)
        return next((a for a in found if name in (a.revision.id, a.revision.label)), None)

    def snapshot(self) -> Fields:
        """Return the /history document."""
        attempts = [
            self.describe(attempt, went_live_fields(replaced) if replaced else None)
            for attempt, replaced in self._with_what_they_replaced()
        ]
        return {"attempts": attempts, "pins": [by_fields(by) for by in self._pins]}

    def describe(self, attempt: Attempt, replaced: Fields | None = None) -> Fields:
        """Return an attempt and its words; `replaced` is the generation that it took over."""
        fields = {**attempt_fields(attempt), "replaced": replaced}
        was_refused = attempt.outcome is Outcome.REJECTED
        words = [word(fields, was_refused) for word in self.word.values()]
        others = [e.words for e in attempt.evidence if e.name not in (PROBE, *self.word)]
        own = AttemptWords(notes=[*map(plain, others)])
        return {**fields, "told": attempt_words(fields, [*words, own])}

    def _with_what_they_replaced(self) -> Iterator[tuple[Attempt, Attempt | None]]:
        """Each attempt, and where it went live the attempt whose weights were live before."""
        before: Attempt | None = None
        pairs = list[tuple[Attempt, Attempt | None]]()
        for attempt in reversed(self._attempts):
            pairs.append((attempt, before if attempt.generation is not None else None))
            before = attempt if attempt.generation is not None else before
        return reversed(pairs)


def went_live_fields(attempt: Attempt) -> Fields:
    """Return the generation that an attempt made."""
    return {"generation": attempt.generation, **revision_fields(attempt.revision)}


def loading_of(live: Generation, history: Iterable[Attempt]) -> LoadFacts | None:
    """Find the loading of the live weights; None if an engine started with them, and for noise.

    A rollback in memory loads none: they are as the attempt before it made them.
    """
    went_live = (a for a in history if a.outcome is Outcome.LIVE and a.revision == live.revision)
    made = (each for each in went_live if each.loading or each.is_of_a_start)
    return next((each.loading for each in made), None)


class Loads:
    """Counts checkpoints that were staged, also those that did not go live in the end."""

    def __init__(self) -> None:
        self._by_loader: Mapping[str, int] = dict.fromkeys(LOADERS, 0)
        self._shared = 0
        self._largest_change = 0.0

    def observe(self, event: Event) -> None:
        """Take in how the weights of an attempt were made."""
        if isinstance(event, AttemptFinished) and (loading := event.attempt.loading):
            count = self._by_loader.get(loading.loader, 0) + 1
            self._by_loader = {**self._by_loader, loading.loader: count}
            self._shared += loading.leaves_shared
            self._largest_change = loading.largest_change

    def families(self) -> Iterator[Family]:
        """Return their metrics, even before the first."""
        words = "Checkpoints staged, by the loader they went through."
        yield counter("loads", words, self._by_loader, "loader")
        words = "Leaves that were not staged again, because a set that is there has them."
        yield counter("leaves_shared", words, self._shared)
        words = (
            "The largest change of a leaf in the last staged checkpoint: root mean square, over "
            "that of the live leaf."
        )
        yield gauge("largest_change", words, self._largest_change)
