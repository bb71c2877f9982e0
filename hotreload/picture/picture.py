"""The one picture of the daemon's state: every event changes it, and every reader reads it.

The verdict on the last wanted revision is whether it is live, and nothing objects to it. Rollout
controllers ask for it (`GET /gate`): they take any 2xx for a yes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Protocol, TypedDict

from hotreload import events
from hotreload.attempts import Attempt, By, Refusal
from hotreload.core.ledger import Ledger
from hotreload.json_fields import Fields, GenerationFields, generation_fields
from hotreload.picture.history import AttemptFields, History, Loads
from hotreload.picture.replicas import ReplicasNow
from hotreload.picture.report import FeatureReport, WishVerdict
from hotreload.picture.surroundings import (
    LatestEvent,
    SourceNow,
    TroublesNow,
    Wishes,
    WorkersNow,
)
from hotreload.picture.under_way import BootProgress, Pace, UnderWay
from hotreload.picture.words import WordAttempt, goes_back
from hotreload.types import AnsweringGeneration, EngineLoad, Generation, Outcome, Revision


@dataclass(frozen=True, slots=True)
class Rank:
    """The place of a daemon among the hosts of one engine."""

    own: int
    of: int
    leader: str
    """The address of rank 0, which decides and answers requests."""

    @property
    def follows(self) -> bool:
        """True where another rank decides."""
        return self.own > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The engines, the host and the kind of source of a daemon."""

    replicas: int = 1
    """The number of engines that it is to have."""
    tp: int = 1
    """The number of devices of each engine, one engine's after the other's."""
    workers: int = 0
    """The number of processes that answer HTTP beside this one."""
    source_kind: str = "directory"
    rank: Rank | None = None
    """Its place among several hosts; None where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """A reading of one engine: all 0 while it does not serve."""

    inside: int = 0
    held: int = 0
    answering: Sequence[AnsweringGeneration] = ()
    """Generations that answer requests in it, and how many: the live one first."""
    load: EngineLoad = field(default_factory=EngineLoad)
    recompiles: int = 0
    staged_bytes: int = 0
    """All bytes ever read for weights, or copied from another engine."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Bytes held on its devices now, by place: live, previous, staged."""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """Counts of the API keys of one name, since the start."""

    requests: int = 0
    """Requests that were taken."""
    refused_by_requests: int = 0
    refused_by_tokens: int = 0
    tokens: int = 0
    """Of prompts and answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Functions that a scrape calls on another thread: none may ask a device, lock or wait."""

    replicas: Callable[[], Sequence[ReplicaFigures]] = lambda: (ReplicaFigures(),)
    """Each engine that the daemon is to have, by its index."""
    answering: Callable[[], Sequence[AnsweringGeneration]] = tuple
    """Generations that answer requests in any engine, and how many: the live one first."""
    silences: Callable[[], Mapping[int, float]] = dict
    """On rank 0 of several hosts: how many seconds ago each other rank gave a sign of life."""
    keys: Callable[[], Mapping[str, KeyFigures]] = dict
    """The counts of named API keys, by their names."""


class State(StrEnum):
    """The state of the daemon, in one word."""

    BOOTING = "booting"
    SERVING = "serving"
    RELOADING = "reloading"
    FOLLOWING = "following"
    STOPPING = "stopping"
    LOST = "lost"


class PicturePart(Protocol):
    """A part of the picture, which events change."""

    def observe(self, event: events.Event) -> None:
        """Take in what happened."""


@dataclass(eq=False)
class Picture:
    """Sees every event before the log, the metrics and systemd do; decides and sends nothing.

    `ledger` and `readings` are read at the moment of a question.
    """

    ledger: Ledger
    _: KW_ONLY
    setup: Setup = Setup()  # it is frozen
    readings: Readings = Readings()  # it is frozen
    reports: Sequence[FeatureReport] = ()
    word: Mapping[str, WordAttempt] = field(default_factory=dict)
    """Puts facts of judges into words, by their names."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        ledger, clock, wall = self.ledger, self.clock, self.wall
        self._parts: list[PicturePart] = []
        self.replicas = self._add(ReplicasNow(self.setup.replicas, wall))
        self.under_way = self._add(UnderWay(clock))
        self.booting = self._add(BootProgress(lambda: ledger.attempts, clock, wall))
        self.pace = self._add(Pace(clock))
        self.history = self._add(History(ledger.attempts, ledger.pins, word=self.word))
        self.loads = self._add(Loads())
        self.troubles = self._add(TroublesNow(wall))
        self.wishes = self._add(Wishes(clock))
        self.source = self._add(SourceNow(self.setup.source_kind, wall))
        self.passed_over = self._add(LatestEvent(events.FoldersPassedOver))
        self.state_file = self._add(LatestEvent(events.StateSaved, wall))
        self.settings = self._add(LatestEvent(events.SettingsRead, wall))
        self.last_life = self._add(LatestEvent(events.LastLifeDied, wall))
        self.workers = self._add(WorkersNow(self.setup.workers))
        self._parts += self.reports

    def _add[P: PicturePart](self, part: P) -> P:
        self._parts.append(part)
        return part

    def observe(self, event: events.Event) -> None:
        """Take in what happened."""
        for part in self._parts:
            part.observe(event)

    @property
    def live(self) -> Generation | None:
        """The live generation; None while booting."""
        return self.replicas.live

    @property
    def follows(self) -> bool:
        """True where another host decides."""
        return self.setup.rank is not None and self.setup.rank.follows

    @property
    def state(self) -> State:
        """The state of the daemon, in one word."""
        if self.replicas.are_lost:
            return State.LOST
        if self.replicas.ending is not None:
            return State.STOPPING
        if not self.replicas.has_opened:
            return State.BOOTING
        if self.follows:
            return State.FOLLOWING
        return State.RELOADING if self.under_way.phase else State.SERVING

    def ready(self) -> tuple[bool, list[str]]:
        """Return True if any engine answers requests (or will those held), else False and why.

        A rank that follows answers none: it is ready while it holds its part of the engine.
        """
        match self.state:
            case State.BOOTING:
                is_at_work = self.under_way.phase is not None
                waiting_for = None if is_at_work else self.wishes.waiting_for
                return False, [f"booting: {waiting_for or self.booting.words()}"]
            case State.LOST:
                why = self.replicas.lost_because or self.replicas.ending
                return False, [f"lost: {why or 'the engine is lost'}"]
            case State.STOPPING:
                return False, [f"stopping: {self.replicas.ending}"]
            case _:
                reasons = [*filter(None, (each.why_not_ready() for each in self.reports))]
                return not reasons, reasons


# --- the verdict on the last wanted revision ------------------------------------------------------

PASS = "pass"
VerdictFields = TypedDict(
    "VerdictFields",
    {
        "pass": bool,
        "verdict": str,
        "why": str,
        "wanted": str | None,
        "wanted_label": str | None,
        "live": GenerationFields | None,
        "attempt": AttemptFields | None,
    },
)
"""The /gate document; features add theirs."""


def verdict_of(
    picture: Picture, asked: str | None = None, newest: Refusal | None = None
) -> WishVerdict:
    """Judge by the live generation, the wish, the last attempt, and features' objections.

    `newest` is the refusal of a revision newer than the live one. With `asked`, the id or label of
    one revision, the others do not matter.
    """
    live, wanted, last = picture.live, picture.wishes.wanted, picture.history.last
    is_ready, reasons = picture.ready()
    if live is None or not is_ready:
        return WishVerdict("not_serving", "; ".join(reasons) or "nothing is live yet")
    if asked is not None:
        return _of_the_one(picture, live.revision, asked)
    if wanted is not None and wanted != live.revision:
        return _of_what_is_not_live(picture, wanted)
    if last is not None and last.outcome is not Outcome.LIVE:
        return _as_ended(last)
    if (back := _went_back(picture)) is not None:
        return WishVerdict("rolled_back", f"back to {live.revision}: {back.reason or 'as ordered'}")
    return _as_refused(newest) if newest else _as_it_lives(picture, live.revision)


def verdict_fields(picture: Picture, newest: Refusal | None, asked: str | None = None) -> Fields:
    """Return the /gate document; of one revision, where it is named by its id or label."""
    verdict, last, live = verdict_of(picture, asked, newest), picture.history.last, picture.live
    wanted = picture.wishes.wanted
    return {
        "pass": verdict.word == PASS,
        "verdict": verdict.word,
        "why": verdict.why,
        "wanted": wanted.id if wanted else None,
        "wanted_label": wanted.label if wanted else None,
        "live": generation_fields(live) if live else None,
        "attempt": picture.history.describe(last) if last else None,
        **{name: told for each in picture.reports for name, told in each.gate_fields(last).items()},
    }


def _of_the_one(picture: Picture, live: Revision, asked: str) -> WishVerdict:
    meant = _find_meant(picture, live, asked)
    if meant is None:
        return WishVerdict("waiting", f"{asked} was not tried yet; {live} is live")
    if meant == live:
        return _as_it_lives(picture, live)
    tried = picture.history.last_of(meant.id)
    if tried is None:
        return _of_what_is_not_live(picture, meant)
    if tried.outcome is not Outcome.LIVE:
        return _as_ended(tried)
    return WishVerdict("replaced", f"{tried.revision} was live, and {live} is now")


def _find_meant(picture: Picture, live: Revision, asked: str) -> Revision | None:
    """Of several revisions of one label the newest: a folder is written anew, a branch moves on."""
    tried = picture.history.last_of(asked)
    known = (picture.wishes.wanted, tried.revision if tried else None, live)
    named = (each for each in known if each is not None and asked in (each.id, each.label))
    return next(named, None)


def _of_what_is_not_live(picture: Picture, wanted: Revision) -> WishVerdict:
    last = picture.history.last
    if last is not None and last.revision == wanted and last.outcome is not Outcome.LIVE:
        return _as_ended(last)
    if (refusal := picture.ledger.refused.get(wanted.id)) is not None:
        return _as_refused(refusal)
    return WishVerdict("waiting", picture.wishes.waiting_for or f"{wanted} is not live yet")


def _as_refused(refusal: Refusal) -> WishVerdict:
    return WishVerdict(Outcome.REJECTED.value, f"{refusal.revision}: {refusal.reason.message}")


def _as_it_lives(picture: Picture, live: Revision) -> WishVerdict:
    """Judge the live generation, which is the wanted one."""
    objections = (report.objection_to(live) for report in picture.reports)
    return next(filter(None, objections), None) or WishVerdict(PASS, f"{live} is live")


def _as_ended(last: Attempt) -> WishVerdict:
    words = last.reason.message if last.reason else "no reason is known"
    return WishVerdict(last.outcome.value, f"{last.revision}: {words}")


def _went_back(picture: Picture) -> By | None:
    """Return the caller of the rollback to the live weights, if one brought them back."""
    last, overruled = picture.history.last, picture.ledger.overruled
    both = (last.by if last else None, overruled.by if overruled else None)
    return next((by for by in both if by is not None and goes_back(by.verb)), None)
