"""Readings of engines and gates at the moment somebody looks, so that they cannot lag behind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hotreload.types import Answering, EngineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReading:
    """A reading of one engine: all 0 while it does not serve."""

    inside: int = 0
    held: int = 0
    answering: Sequence[Answering] = ()
    """Generations that answer requests in it, and how many: the live one first."""
    load: EngineLoad = field(default_factory=EngineLoad)
    recompiles: int = 0
    staged_bytes: int = 0
    """All bytes ever read for weights, or copied from another engine."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Bytes held on its devices now, by place: live, previous, staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Functions that a scrape calls on another thread: none may ask a device, lock or wait."""

    replicas: Callable[[], Sequence[ReplicaReading]] = lambda: (ReplicaReading(),)
    """Each engine that the daemon is to have, by its index."""
    answering: Callable[[], Sequence[Answering]] = tuple
    """Generations that answer requests in any engine, and how many: the live one first."""
    heard: Callable[[], Mapping[int, float]] = dict
    """On rank 0 of several hosts: how many seconds ago each other rank gave a sign of life."""
