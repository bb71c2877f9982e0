"""The place of what serves: the server, a scrape and systemd ask here, also while it is empty."""

import asyncio
import os
import time
from dataclasses import replace

from hotreload.core.engines.background import Leave
from hotreload.core.engines.replica import Replica, Replicas
from hotreload.core.ledger import PastGeneration
from hotreload.core.operator import Operator
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.errors import NotServing
from hotreload.life.running_engine import RunningEngine
from hotreload.picture.picture import ReplicaReading
from hotreload.types import By, Generation, Reason


class ServingSlot:
    """Holds what serves behind the entrance, from the end of the start until the daemon leaves."""

    def __init__(self, entrance: Entrance[RunningEngine]) -> None:
        self.entrance = entrance
        self.filled = asyncio.Event()
        """Set as soon as something serves."""
        self._replicas: Replicas[RunningEngine] | None = None
        self._operator: Operator | None = None

    def fill(self, replicas: Replicas[RunningEngine], operator: Operator | None = None) -> None:
        """Put in what serves; on a rank that follows nobody takes orders."""
        self._replicas, self._operator = replicas, operator
        self.filled.set()

    def clear(self) -> None:
        """Count nothing as serving any more."""
        self._replicas = self._operator = None

    def replicas(self) -> Replicas[RunningEngine]:
        """Return the engines that serve; NotServing while there are none yet."""
        if self._replicas is None:
            raise NotServing("the engine is starting", code="booting", retry_after=2)
        return self._replicas

    def operator(self) -> Operator:
        """Return who takes orders; NotServing while there is nothing to order."""
        self.replicas()
        assert self._operator is not None, "nobody gives a rank that follows an order"
        return self._operator

    def engines(self) -> list[RunningEngine]:
        """List the engines that serve, the first to be tried first; none while there are none."""
        return [each.engine for each in self._replicas or ()]

    def make_leave(self, verb: str) -> Leave:
        """Return what leaves weights that do harm, without an operator's word; `verb` says why."""

        async def leave(reason: Reason, left: Generation) -> None:
            by = By(verb, os.getuid(), os.getpid(), time.time(), reason.message)
            await self.operator().leave(reason, left, by=by)

        return leave

    def is_turning(self, within: float) -> bool:
        """True if any engine's scheduler was seen lately, or there is no engine yet.

        One that hangs beside others is counted as lost by its own watch.
        """
        engines = self.engines()
        return not engines or any(engine.is_turning(within) for engine in engines)

    async def abort(self) -> None:
        """End all requests, so that their clients hear why."""
        for engine in self.engines():
            await engine.abort()

    def keeps(self, place: PastGeneration) -> bool:
        """True if a rollback to this generation needs no files; nobody rolls back a follower."""
        return self._replicas is None or self._operator is None or self._replicas.keeps(place)

    def read(self, *, previous_is_on_device: bool) -> list[ReplicaReading]:
        """Read each engine and its gate; plain numbers while it does not serve."""
        by_index = {replica.index: replica for replica in self._replicas or ()}
        return [
            _read_replica(gate, by_index.get(gate.replica), previous_is_on_device)
            for gate in tuple(self.entrance.gates)
        ]


def _read_replica(
    gate: Gate[RunningEngine], replica: Replica[RunningEngine] | None, previous_is_on_device: bool
) -> ReplicaReading:
    """Read one engine; of one that does not serve who is at its gate."""
    at_gate = ReplicaReading(inside=gate.inside, held=gate.held, answering=gate.list_answering())
    if replica is None:
        return at_gate
    return replace(
        at_gate,
        load=replica.engine.load,
        recompiles=replica.engine.recompiles,
        staged_bytes=replica.staged_bytes,
        weights=_weights_held(replica, previous_is_on_device),
    )


def _weights_held(replica: Replica[RunningEngine], previous_is_on_device: bool) -> dict[str, int]:
    """Bytes on the device by place."""
    before, staged = [each.weights for each in replica.fading], replica.staged
    on_device = not replica.engine.spares_wait_on_host
    if replica.previous is not None and previous_is_on_device and on_device:
        before.append(replica.previous)
    new = [staged] if staged is not None and on_device else []
    live, *rest = replica.engine.held_bytes([replica.engine.live, *before, *new])
    return {
        "live": live,
        "previous": sum(rest[: len(before)]),
        "staged": sum(rest[len(before) :]),
    }
