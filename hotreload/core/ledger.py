"""The record of all attempts and of what came of them.

This module does not know what of the record survives a restart, nor how it is written down.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from hotreload.attempts import ROLLBACK, Attempt, By, Evidence, Refusal
from hotreload.errors import ProbeFailed
from hotreload.types import Generation, Outcome, Reason, Revision

KEPT_ATTEMPTS = 200
KEPT_GENERATIONS = 50
KEPT_REFUSALS = 500
KEPT_PINS = 50
LEFT_BY_HAND = "rolled_back"
"""The code of the refusal of a revision that an operator rolled back from."""


@dataclass(frozen=True, slots=True)
class PastGeneration:
    """A generation, and where its files were when it went live."""

    number: int
    revision: Revision
    fingerprint: str
    path: str
    """Empty when the weights were made in memory and have no files."""
    since: float
    version: str = ""
    """The version given by the caller of these weights."""
    source: str = ""
    """The source that the settings named when it went live; empty when unknown."""

    @classmethod
    def of(cls, live: Generation, path: str = "", source: str = "") -> "PastGeneration":
        """Return the record of a generation whose files lie here; none by default."""
        name = (live.number, live.revision, live.fingerprint)
        return cls(*name, path, live.since, live.version, source)


@dataclass(frozen=True, slots=True)
class ServedBy:
    """All that answers depend on beside the weights."""

    sglang_jax: str
    jax: str
    dtype: str
    tp: int
    args: str
    """A digest of `[engine.args]`."""
    files: str
    """A digest of the model's config and tokenizer."""
    model: str = field(compare=False)
    """The folder that these lay in; the same files in another folder are the same model."""


@dataclass(frozen=True, slots=True)
class Overrule:
    """The fact that an operator made another revision live than the source wishes."""

    choice: Revision
    wish: Revision
    by: By


@dataclass(slots=True)
class Ledger:
    """Times are monotonic seconds where they order things, wall-clock where people read them."""

    live: Generation | None = None
    wanted: Revision | None = None
    wished: Revision | None = None
    """The source's newest wish; an operator may want another."""
    overruled: Overrule | None = None
    refused: dict[str, Refusal] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    rest_until: float = 0.0
    pinned: bool = False
    pins: deque[By] = field(default_factory=lambda: deque(maxlen=KEPT_PINS))
    """Records of pins and unpins, newest first."""
    generations: deque[PastGeneration] = field(
        default_factory=lambda: deque(maxlen=KEPT_GENERATIONS)
    )
    attempts: deque[Attempt] = field(default_factory=lambda: deque(maxlen=KEPT_ATTEMPTS))
    under_way: Revision | None = None
    crashes: dict[str, int] = field(default_factory=dict)
    lost_at: float = 0.0
    """When an engine was last lost; 0 for never."""
    superseded_last: bool = False
    source: str = ""
    """The source that the settings name now."""
    numbers_given: int = 0
    """Attempts that died before the file was written may have used numbers up to this one."""
    contents: dict[str, str] = field(default_factory=dict)
    """Content ids by `unread-` id and by commit; each thread that reads files adds some."""
    probes: str = ""
    """A digest of the probes that weights are judged by."""
    promised: int = 0
    """The number written to disk for the attempt under way, which may use it; 0 for none."""
    served_by: ServedBy | None = None
    """The engine and model that answered by the last weights with files; None when unknown."""
    missed: PastGeneration | None = None
    """The last live generation, while it cannot be served and an older one answers instead."""
    damage: str | None = None
    """The part of this ledger that was lost, in words; until an operator pins or unpins."""

    @property
    def next_number(self) -> int:
        """The number of the next generation; it never falls, not even by a rollback or a crash."""
        return max(self.numbers_given, *(place.number for place in self.generations), 0) + 1

    @property
    def last_good(self) -> PastGeneration | None:
        """The generation with files that went live last and was not refused since."""
        return next(iter(self.good), None)

    @property
    def good(self) -> list[PastGeneration]:
        """The revisions with files that went live and were not refused since, newest first."""
        newest: dict[str, PastGeneration] = {}
        for place in reversed(self.generations):
            if place.path and place.revision.id not in self.refused:
                newest.setdefault(place.revision.id, place)
        return list(newest.values())

    @property
    def start_target(self) -> PastGeneration | None:
        """The generation that a start brings back: the last live one, or the missed one."""
        missed = self.missed
        is_good = missed is not None and missed.revision.id not in self.refused
        return missed if is_good else self.last_good

    @property
    def due(self) -> Revision | None:
        """The revision that should answer: the wanted one, or the missed one."""
        is_content = self.live is not None and self.wanted in (None, self.live.revision)
        return self.missed.revision if self.missed and is_content else self.wanted

    @property
    def pinned_by(self) -> By | None:
        """The pin of the live generation; None if there is none, or none was recorded."""
        return self.pins[0] if self.pinned and self.pins else None

    @property
    def held_by(self) -> str:
        """The kind of order that pins the live generation, in words."""
        by = self.pinned_by
        return "a rollback" if by is not None and by.verb == ROLLBACK else "a pin"

    def set_pinned(self, pinned: bool, by: By) -> Callable[[], None]:
        """Pin or unpin, and return a function that undoes it.

        A pin of an older generation accepts it in the place of the missed one. A pin or unpin, but
        not a rollback, also acknowledges damage to the ledger. An unpin after a rollback wants the
        source's wish again, if that was never tried.
        """
        before = self.pinned, self.pins, self.missed, self.damage
        self.pinned, self.pins = pinned, deque((by, *self.pins), maxlen=KEPT_PINS)
        self.missed = None if pinned else self.missed
        self.damage = self.damage if by.verb == ROLLBACK else None
        ended = None if pinned else self._end_rollback()

        def take_back() -> None:
            self.pinned, self.pins, self.missed, self.damage = before
            if ended is not None and self.wanted == ended.wish:  # else a newer wish has come
                self.wanted, self.overruled = ended.choice, ended

        return take_back

    def _end_rollback(self) -> Overrule | None:
        """Want the wish that a rollback overrules, if it was never tried; return the rollback."""
        back = self.overruled
        if back is None or back.by.verb != ROLLBACK:
            return None
        if back.wish.id in self.refused or self.past_of(back.wish) is not None:
            return None
        self.wanted, self.overruled = back.wish, None
        return back

    def wish(self, revision: Revision) -> bool:
        """Record the source's wish; returns False while an operator overrules it."""
        self.wished = revision
        if self.overruled is not None and self.overruled.wish == revision:
            return False
        self.overruled, self.wanted = None, revision
        return True

    def overrule(self, choice: Revision, by: By) -> None:
        """Want the operator's choice until the source wishes something new."""
        wish, self.wanted = self.wished, choice
        self.overruled = Overrule(choice, wish, by) if wish and wish != choice else None

    def resume(self, live: Revision) -> None:
        """After a restart, keep an operator's choice if it is live again.

        The source has not reported its wish yet, which is the same as before, or new.
        """
        if self.overruled is not None and self.overruled.choice == live:
            self.wanted, self.wished = live, self.overruled.wish
        else:
            self.overruled, self.wished = None, live

    def past(self, number: int) -> PastGeneration | None:
        """Find where generation `number` came from, if it is still remembered."""
        return next((place for place in self.generations if place.number == number), None)

    def place_of(self, live: Generation) -> PastGeneration:
        """Find where a live generation came from; if that is forgotten, return a place without
        files."""
        return self.past(live.number) or PastGeneration.of(live)

    def past_before(self, live: Generation | PastGeneration) -> PastGeneration | None:
        """The generation before this one that has files, other weights, and is not refused."""
        return next((place for place in self.before(live) if place.path), None)

    def before(self, live: Generation | PastGeneration) -> list[PastGeneration]:
        """List earlier generations with other weights that are not refused, newest first."""
        older = (p for p in reversed(self.generations) if p.number < live.number)
        others = (p for p in older if p.fingerprint != live.fingerprint)
        return [p for p in others if p.revision.id not in self.refused]

    def past_of(self, revision: Revision) -> PastGeneration | None:
        """Find the last generation that had this revision."""
        return next((p for p in reversed(self.generations) if p.revision == revision), None)

    def was_live_as(self, revision: Revision, fingerprint: str) -> PastGeneration | None:
        """Find the last generation that had both this revision and these weights."""
        name = (revision, fingerprint)
        same = (p for p in reversed(self.generations) if (p.revision, p.fingerprint) == name)
        return next(same, None)

    def in_a_row(self, revision: Revision, code: str) -> int:
        """Count the last attempts at this revision that ended for this reason, without a gap."""
        reasons = (a.reason for a in self.attempts if a.revision == revision and not a.dry_run)
        return len(list(takewhile(lambda why: why is not None and why.code == code, reasons)))

    def went_live(self, generation: Generation, path: str) -> None:
        """Record the generation that answers from now on; it is no longer refused."""
        self.live = generation
        if not generation.revision.is_noise:
            self.missed = None
        if self.under_way == generation.revision:  # it no longer matters how the attempt ends
            self.under_way = None
        self.refused.pop(generation.revision.id, None)
        if self.past(generation.number) is None:
            self.generations.append(PastGeneration.of(generation, path, self.source))
        self.name_live(generation)

    def name_live(self, live: Generation) -> None:
        """Give the live generation another version, which holds again after a rollback to it."""
        self.live = live
        if (known := self.past(live.number)) is not None:
            at = self.generations.index(known)
            self.generations[at] = replace(known, version=live.version)

    def forget_others(self, generation: Generation) -> None:
        """Forget other weights recorded under this number, which another host gave to these."""
        name = (generation.revision, generation.fingerprint)
        other = self.past(generation.number)
        if other is not None and (other.revision, other.fingerprint) != name:
            self.generations.remove(other)

    def begin(self, revision: Revision) -> None:
        """Record that an attempt starts; if the process dies, the next start knows it."""
        self.under_way = revision

    def finish(
        self,
        attempt: Attempt,
        *,
        now: float,
        backoff: Callable[[int], float],
        rest: float,
        refuse: bool = True,
    ) -> None:
        """Record how an attempt ended, and when another may be tried.

        The live revision is never refused, even if a second attempt at it failed: a start goes back
        to it.
        """
        key = attempt.revision.id
        is_live = self.live is not None and self.live.revision == attempt.revision
        self.attempts.appendleft(attempt)
        if attempt.outcome is Outcome.LOST:
            return  # left under way, so that the next start counts a death
        self.under_way = None
        self.crashes.pop(key, None)
        self.superseded_last = attempt.outcome is Outcome.SUPERSEDED
        if attempt.outcome is Outcome.POSTPONED:
            self.failures[key] = self.failures.get(key, 0) + 1
            self.not_before[key] = now + backoff(self.failures[key])
        elif attempt.outcome is not Outcome.SUPERSEDED:
            self.failures.pop(key, None)
            self.not_before.pop(key, None)
        if attempt.outcome is Outcome.REJECTED and attempt.reason and refuse and not is_live:
            self.refuse(attempt.revision, attempt.reason, attempt.finished_at)
        if attempt.outcome is Outcome.LIVE:
            self.rest_until = now + rest

    def abandon(self) -> None:
        """Forget the attempt under way: we cancelled it, so its end says nothing about the
        checkpoint."""
        self.under_way = None

    def judge_by(self, probes: str) -> None:
        """Judge by these probes from now on; what failed other probes may be tried again."""
        self.probes = probes
        still = [each for each in self.refused.values() if each.probes in ("", probes)]
        self.refused = {each.revision.id: each for each in still}

    def refuse(self, revision: Revision, reason: Reason, at: float) -> None:
        """Refuse a revision until its bytes or the failed probes change, or an order forces it."""
        self.refused.pop(revision.id, None)
        probes = self.probes if reason.code == ProbeFailed.code else ""
        self.refused[revision.id] = Refusal(revision, reason, at, probes)
        while len(self.refused) > KEPT_REFUSALS:
            del self.refused[next(iter(self.refused))]

    def count_crash(self, at: float) -> None:
        """After a restart, count the process's death against the attempt it ended; two refuse."""
        died_on, self.under_way = self.under_way, None
        if died_on is None:
            return
        self.crashes[died_on.id] = self.crashes.get(died_on.id, 0) + 1
        if self.crashes[died_on.id] >= 2:
            words = "the process died twice while this revision was tried"
            self.refuse(died_on, Reason("crashed", words), at)


def note_evidence(attempts: deque[Attempt], generation: int, evidence: Evidence) -> None:
    """Add evidence to the attempt that made this generation live."""
    for place, attempt in enumerate(attempts):
        if attempt.generation == generation:
            attempts[place] = attempt.with_evidence(evidence)
            return
