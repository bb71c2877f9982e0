"""Each of the daemon's engines as events describe it, and the state of the daemon as a whole.

A daemon answers while one engine does. Its live generation is the one that all engines hold: during
a reload from one to the next, that is the old one.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypedDict

from hotreload import events
from hotreload.errors import EngineLost
from hotreload.json_fields import Fields, drift_fields, iso
from hotreload.picture.report import Family, counter, gauge
from hotreload.types import GateState, Generation, Mode, Outcome, ReplicaState


class TrustFields(TypedDict):
    """Trust in live weights."""

    drifted: Fields | None
    verified_at: str | None


class LoaderFields(TypedDict):
    """Trust in our own loader."""

    trusted: bool
    reason: str | None


class IntegrityFields(TrustFields):
    """Trust in our own loader, and in the live weights of all engines."""

    loader: LoaderFields


@dataclass(slots=True)
class Trust:
    """The findings about one engine: if our own loader is right, and the live weights unchanged."""

    distrust: str | None = None
    drift: events.LiveDrifted | None = None
    drifted_since: float = 0.0
    verified_at: float = 0.0

    def verify(self, at: float) -> None:
        """Note that the live weights are what went live; 0 if other weights are live."""
        self.drift, self.verified_at = None, at

    def fields(self) -> TrustFields:
        """Return it as /status shows it of an engine."""
        drift, since = self.drift, iso(self.drifted_since)
        return {
            "drifted": {**drift_fields(drift.leaves), "since": since} if drift else None,
            "verified_at": iso(self.verified_at) if self.verified_at else None,
        }


@dataclass(slots=True)
class ReplicaNow:
    """One engine: its state, the generations in it, and its next start if it was lost."""

    since: float
    """The beginning of this state; wall-clock seconds."""
    state: ReplicaState = ReplicaState.STARTING
    reason: str | None = None
    again_at: float | None = None
    """The time of its next start, if it was lost; wall-clock seconds."""
    restarts: int = 0
    gate: GateState = GateState.SEALED
    live: Generation | None = None
    warming: tuple[int, int] | None = None
    """For how many sizes of batches, of how many, it has compiled; None when it compiles no more.
    """
    older_generations: list[Generation] = field(default_factory=list)
    """Generations that were live in it and still answer, newest first."""
    trust: Trust = field(default_factory=Trust)

    @property
    def lets_in(self) -> bool:
        """True while requests are answered there, at once or after a swap."""
        return self.gate is not GateState.SEALED

    def become(self, state: ReplicaState, now: float, reason: str | None = None) -> None:
        """Note that it starts, serves or was lost; an engine that does not serve holds nothing."""
        if state is ReplicaState.STARTING and self.state is ReplicaState.LOST:
            self.restarts += 1
        if state is not self.state:
            self.state, self.since, self.again_at = state, now, None
        self.reason = reason
        if state is not ReplicaState.SERVING:
            self.gate, self.live, self.older_generations = GateState.SEALED, None, []
            self.warming = None

    def went_live(self, generation: Generation, mode: Mode | None) -> None:
        """Note the live generation; by overlap the one before answers, too, until it ends."""
        before, self.live = self.live, generation
        if before is not None and before != generation and mode is Mode.OVERLAP:
            weights = (generation.revision, generation.fingerprint)
            older = [before, *self.older_generations]
            # Without those that a rollback made live again.
            self.older_generations = [g for g in older if (g.revision, g.fingerprint) != weights]

    def fields(self, now: float) -> Fields:
        """Return the engine's state, as the status shows it; other fields show weights and gate."""
        left = None if self.again_at is None else round(max(0.0, self.again_at - now), 1)
        return {
            "state": self.state.value,
            "reason": self.reason,
            "again_in": left,
            "restarts": self.restarts,
            "warming": self.warming and dict(zip(("done", "total"), self.warming, strict=True)),
        }


class ReplicasNow:
    """Knows how each engine is, and the daemon as a whole."""

    def __init__(self, wanted: int = 1, wall: Callable[[], float] = time.time) -> None:
        """`wanted` is how many engines the daemon is to have."""
        self._wall = wall
        self.all = [ReplicaNow(wall()) for _ in range(wanted)]
        """By index."""
        self.live: Generation | None = None
        """The generation that is live in the daemon."""
        self.before: Generation | None = None
        """The one that was live in it before that."""
        self.ending: str | None = None
        """The reason why no request is let in any more, unless engines were lost."""
        self.has_opened = False
        self.mode: Mode | None = None
        """The way in which new weights take over."""
        self.mode_reason: str | None = None

    def observe(self, event: events.Event) -> None:
        """Take in what happened to one of them."""
        self._observe_trust(event)
        match event:
            case events.ReplicaMoved():
                self._note_move(event)
            case events.ModeChosen(mode, why):  # engines of one model do it alike
                self.mode, self.mode_reason = mode, why
            case events.GateChanged():
                self._gate_moved(event)
            case events.GenerationLive(generation, replica):
                self.all[replica].went_live(generation, self.mode)
                self.all[replica].trust.verify(0.0)  # nothing is known of other weights
                if all(each.live in (None, generation) for each in self.all):
                    self._went_live(generation)
            case events.Warmup(replica, done, total, is_over):
                self.all[replica].warming = None if is_over else (done, total)
            case events.GenerationNamed(generation):
                for each in self.all:
                    each.live = generation if each.live == generation else each.live
                self._went_live(generation)
            case events.GenerationEnded(generation, replica):
                fading = self.all[replica].older_generations
                self.all[replica].older_generations = [
                    each for each in fading if each != generation
                ]
            case events.AttemptFinished(attempt, live, replica):
                self._went_live(live)
                on = self.all[replica]
                if attempt.outcome is Outcome.LOST and not on.lets_in:
                    on.become(ReplicaState.LOST, self._wall(), on.reason)

    def _observe_trust(self, event: events.Event) -> None:
        """Take in what was found out about the loader and the live weights."""
        match event:
            case events.LoaderDistrusted(reason, replica):
                self.all[replica].trust.distrust = reason
            case events.LiveVerified(replica=replica):
                self.all[replica].trust.verify(self._wall())
            case events.LiveDrifted(replica=replica):
                trust = self.all[replica].trust
                trust.drifted_since = trust.drifted_since if trust.drift else self._wall()
                trust.drift = event

    def _note_move(self, event: events.ReplicaMoved) -> None:
        now, moved = self._wall(), self.all[event.replica]
        moved.become(event.state, now, event.reason)
        moved.again_at = None if event.again_in is None else now + event.again_in
        if event.state is ReplicaState.LOST:  # the next one has other memory
            moved.trust = Trust()

    def _gate_moved(self, event: events.GateChanged) -> None:
        behind = self.all[event.replica]
        if event.state is not GateState.SEALED:
            self.has_opened = True
            behind.become(ReplicaState.SERVING, self._wall())
            behind.gate = event.state
        elif event.code == EngineLost.code:
            behind.become(ReplicaState.LOST, self._wall(), event.reason)
        else:
            behind.gate = event.state
            self.ending = event.reason or "the gate is sealed"

    def _went_live(self, generation: Generation | None) -> None:
        if generation is None:
            return
        self.before = self.before if generation == self.live else self.live
        self.live = generation  # it may be known by another version

    @property
    def serving_count(self) -> int:
        """The number of them that answer requests, at once or after a swap."""
        return sum(each.lets_in for each in self.all)

    @property
    def are_lost(self) -> bool:
        """True while no request is answered because engines were lost."""
        lost = [each.state is ReplicaState.LOST for each in self.all]
        return all(lost) or (any(lost) and not self.serving_count and self.ending is None)

    @property
    def lost_because(self) -> str | None:
        """The reason why the last engine was lost, if it was published."""
        lost = [each for each in self.all if each.state is ReplicaState.LOST and each.reason]
        return max(lost, key=lambda each: each.since).reason if lost else None

    @property
    def gate(self) -> GateState:
        """The state of the gates, taken together: open when one is."""
        states = {each.gate for each in self.all}
        return next(each for each in GateState if each in states)  # open, holding, sealed

    @property
    def older_generations(self) -> list[Generation]:
        """Generations beside the live one that still end what they began, the newest first."""
        older = {each for replica in self.all for each in replica.older_generations} - {self.live}
        return sorted(older, key=lambda each: -each.number)

    def trust_fields(self) -> IntegrityFields:
        """Return the part of the status about the loader and drift: the faults of any engine."""
        trusts = [each.trust for each in self.all]
        distrust = next((each.distrust for each in trusts if each.distrust), None)
        told = next((each for each in trusts if each.drift), None)
        told = told or min(trusts, key=lambda each: each.verified_at)  # not all, or the oldest
        return {"loader": {"trusted": distrust is None, "reason": distrust}, **told.fields()}

    def families(self) -> Iterator[Family]:
        """Return the metrics of the engines."""
        by_index = {str(index): each for index, each in enumerate(self.all)}
        yield gauge("replicas", "Engines that the daemon is to have.", len(self.all))
        words = "Engines that answer requests, at once or after a swap."
        yield gauge("replicas_serving", words, self.serving_count)
        live = {index: each.live for index, each in by_index.items()}
        words = "The live generation of an engine; 0 while it does not serve."
        numbers = {index: each.number if each else 0 for index, each in live.items()}
        yield gauge("replica_generation", words, numbers, "replica")
        words = "How often a lost engine was started again."
        restarts = {index: each.restarts for index, each in by_index.items()}
        yield counter("replica_restarts", words, restarts, "replica")
        words = "Sizes of batches that an engine still compiles, beside its answers."
        warming = {index: each.warming or (0, 0) for index, each in by_index.items()}
        left = {index: total - done for index, (done, total) in warming.items()}
        yield gauge("sizes_to_compile", words, left, "replica")

    def trust_families(self) -> Iterator[Family]:
        """Return the metrics of the loader and of drift."""
        trusts = {str(index): each.trust for index, each in enumerate(self.all)}
        words = "1; 0 once our own loader was switched off, because upstream's made other weights."
        trusted = {index: each.distrust is None for index, each in trusts.items()}
        yield gauge("loader_trusted", words, trusted, "replica")
        words = (
            "1 while leaves that answer are no longer what went live ([checks] verify_live_every)."
        )
        drifted = {index: each.drift is not None for index, each in trusts.items()}
        yield gauge("live_drifted", words, drifted, "replica")
        words = "When the live weights were last found whole; 0 for never."
        verified = {index: each.verified_at for index, each in trusts.items()}
        yield gauge("live_verified_timestamp_seconds", words, verified, "replica")
