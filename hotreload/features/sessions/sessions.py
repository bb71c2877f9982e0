"""Sessions: the weights that answered the first request answer the others, or these are refused.

A session has a name. It keeps the lane of its weights open for a while after its last request, also
when other weights are live. The name is remembered for longer than that: a request of it is refused
then, and never answered by other weights in silence.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from hotreload.core.way_in.admission import Admission, Conditions
from hotreload.core.way_in.gate import ExactWeights, Gate
from hotreload.types import Lease

MOST_SESSIONS = 65_536
"""The most that are remembered; beyond that the idle one that was used least lately is forgotten.

While all of them have a request under way, a new one is answered and not remembered.
"""
REMEMBERED_SECONDS = 3600.0
"""A session is remembered for so long after its last answer."""


@dataclass(slots=True, eq=False)
class _Session:
    weights: ExactWeights
    replica: int
    """The engine that answered it last, by its index."""
    used_at: float
    """The end of its last request."""
    inside: int = 0
    kept: tuple[Gate[Any], Lease[Any]] | None = None
    end: asyncio.TimerHandle | None = None


class Sessions(Admission):
    """A table of names; it knows nothing of where they come from."""

    def __init__(self, keep: float = 0.0) -> None:
        self.keep = keep
        """Seconds for which a lane is kept after a session's last request; 0: there are none."""
        self._by_name: dict[Hashable, _Session] = {}
        self._idle: OrderedDict[Hashable, _Session] = OrderedDict()
        """Those of them with no request under way; the ones used least lately come first."""

    def __len__(self) -> int:
        return len(self._by_name)

    def weights_for(self, asked: Conditions) -> Sequence[ExactWeights]:
        """Return the weights that its session goes on by; none where that is new."""
        session = self._find(asked.session)
        return () if session is None else (session.weights,)

    def engine_for(self, asked: Conditions) -> int | None:
        """Return the index of the engine that answered its session last."""
        session = self._find(asked.session)
        return None if session is None else session.replica

    def track(
        self, asked: Conditions, gate: Gate[Any], lease: Lease[Any]
    ) -> AbstractContextManager[None] | None:
        """Answer a request of a session by this lease; its first one binds it."""
        if (name := asked.session) is None or not self.keep:
            return None
        session = self._find(name) or self._new(name, gate, lease)
        return None if session is None else self._answer_by(name, session, gate, lease)

    @contextmanager
    def _answer_by(
        self, name: Hashable, session: _Session, gate: Gate[Any], lease: Lease[Any]
    ) -> Iterator[None]:
        session.replica = gate.replica
        session.inside += 1
        self._idle.pop(name, None)
        self._keep(session, gate, lease)
        try:
            yield
        finally:
            session.inside -= 1
            if not session.inside:
                session.used_at = _now()
                self._idle[name] = session
                loop = asyncio.get_running_loop()
                session.end = loop.call_later(self.keep, _let_go, session)

    def engine_lost(self, gate: Gate[Any]) -> None:
        """Keep nothing of an engine that was lost."""
        for session in self._by_name.values():
            if session.kept is not None and session.kept[0] is gate:
                session.kept = None

    def _find(self, name: Hashable | None) -> _Session | None:
        return self._by_name.get(name) if self.keep else None

    def _new(self, name: Hashable, gate: Gate[Any], lease: Lease[Any]) -> _Session | None:
        """Remember a new one; None where as many as may be are under way."""
        self._forget_some()
        if len(self) >= MOST_SESSIONS:
            return None
        weights = ExactWeights(fingerprint=lease.generation.fingerprint)
        self._by_name[name] = session = _Session(weights, gate.replica, _now())
        return session

    def _keep(self, session: _Session, gate: Gate[Any], lease: Lease[Any]) -> None:
        if session.kept != (gate, lease):
            _let_go(session)
        elif session.end is not None:
            session.end.cancel()
        gate.keep(lease, session)
        session.kept, session.end = (gate, lease), None

    def _forget_some(self) -> None:
        """Make room for one more: forget those of long ago, and the oldest of too many."""
        while self._idle:
            name, oldest = next(iter(self._idle.items()))
            is_old = oldest.used_at + max(REMEMBERED_SECONDS, self.keep) < _now()
            if not (is_old or len(self) >= MOST_SESSIONS):
                return
            del self._idle[name], self._by_name[name]
            _let_go(oldest)


def _let_go(session: _Session) -> None:
    """Keep its lane open no longer."""
    if session.end is not None:
        session.end.cancel()
    if session.kept is not None:
        gate, lease = session.kept
        gate.unkeep(lease, session)
    session.end = session.kept = None


def _now() -> float:
    return asyncio.get_running_loop().time()
