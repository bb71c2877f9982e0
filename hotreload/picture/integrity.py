"""Trust in our own loader, and in the live weights: are they still what went live?"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from hotreload.events import (
    Event,
    GenerationLive,
    LiveDrifted,
    LiveVerified,
    LoaderDistrusted,
    ReplicaMoved,
)
from hotreload.json_fields import Fields, drift_fields, iso
from hotreload.types import ReplicaState


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
    """The findings about one engine."""

    distrust: str | None = None
    drift: LiveDrifted | None = None
    drifted_since: float = 0.0
    verified_at: float = 0.0

    def fields(self) -> TrustFields:
        """Return it as /status shows it of an engine."""
        drift, since = self.drift, iso(self.drifted_since)
        return {
            "drifted": {**drift_fields(drift.leaves), "since": since} if drift else None,
            "verified_at": iso(self.verified_at) if self.verified_at else None,
        }


class Integrity:
    """Knows what was found out about each engine."""

    def __init__(self, wall: Callable[[], float] = time.time, replicas: int = 1) -> None:
        self._wall = wall
        self.all = [Trust() for _ in range(replicas)]
        """By the engine's index."""

    def observe(self, event: Event) -> None:
        """Take in what was found out about the loader and the live weights."""
        match event:
            case LoaderDistrusted(reason, replica):
                self.all[replica].distrust = reason
            case LiveDrifted(replica=replica):
                of = self.all[replica]
                of.drifted_since = of.drifted_since if of.drift else self._wall()
                of.drift = event
            case LiveVerified(replica=replica):
                self.all[replica].drift, self.all[replica].verified_at = None, self._wall()
            case GenerationLive(replica=replica):
                self.all[replica].drift, self.all[replica].verified_at = None, 0.0
            case ReplicaMoved(replica, ReplicaState.LOST):  # the next one has other memory
                self.all[replica] = Trust()

    def fields(self) -> IntegrityFields:
        """Return the part of the status about it: the faults of any of the engines."""
        distrust = next((each.distrust for each in self.all if each.distrust), None)
        told = next((each for each in self.all if each.drift), None)
        told = told or min(self.all, key=lambda each: each.verified_at)  # not all, or the oldest
        return {"loader": {"trusted": distrust is None, "reason": distrust}, **told.fields()}
