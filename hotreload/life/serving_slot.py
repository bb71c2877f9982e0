"""Holds the engines that serve, for the server, metrics and systemd; empty during the start."""

import asyncio
import os
import time
from dataclasses import replace

from hotreload.attempts import By
from hotreload.core.engines.background import Leave
from hotreload.core.engines.replica import Replica, Replicas
from hotreload.core.ledger import PastGeneration
from hotreload.core.operator import Operator
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.errors import NotServing
from hotreload.life.running_engine import RunningEngine
from hotreload.picture.picture import ReplicaFigures
from hotreload.types import Generation, Reason


class ServingSlot:
    """Holds the engines behind the entrance, from the end of the start until the daemon stops."""

    def __init__(self, entrance: Entrance[RunningEngine]) -> None:
        self.entrance = entrance
        self.filled = asyncio.Event()
        """Set as soon as an engine serves."""
        self._replicas: Replicas[RunningEngine] | None = None
        self._operator: Operator | None = None

    def fill(self, replicas: Replicas[RunningEngine], operator: Operator | None = None) -> None:
        """Put in the engines that serve; a rank that follows has no operator."""
        self._replicas, self._operator = replicas, operator
        self.filled.set()

    def clear(self) -> None:
        """Remove the engines and the operator."""
        self._replicas = self._operator = None

    def replicas(self) -> Replicas[RunningEngine]:
        """Return the engines that serve; NotServing while there are none yet."""
        if self._replicas is None:
            raise NotServing("the engine is starting", code="booting", retry_after=2)
        return self._replicas

    def operator(self) -> Operator:
        """Return the operator; NotServing while no engine serves."""
        self.replicas()
        assert self._operator is not None, "a rank that follows takes no orders"
        return self._operator

    def engines(self) -> list[RunningEngine]:
        """List the engines that serve, the one to try first in front; empty during the start."""
        return [each.engine for each in self._replicas or ()]

    def make_leave(self, verb: str) -> Leave:
        """Make the function that rolls back from harmful weights; `verb` names the feature."""

        async def leave(reason: Reason, left: Generation) -> str | None:
            by = By(verb, os.getuid(), os.getpid(), time.time(), reason.message)
            try:
                return await self.operator().leave(reason, left, by=by)
            except NotServing as why:
                return str(why)

        return leave

    def is_turning(self, within: float) -> bool:
        """Return True if any engine's scheduler ran lately, or there is no engine yet.

        A hanging engine beside others is marked as lost by its own watch.
        """
        engines = self.engines()
        return not engines or any(engine.is_turning(within) for engine in engines)

    async def abort(self) -> None:
        """End all requests; their clients get the reason."""
        for engine in self.engines():
            await engine.answers.abort()

    def keeps(self, place: PastGeneration) -> bool:
        """Return True if a rollback to this generation needs no files, or this rank follows."""
        return self._replicas is None or self._operator is None or self._replicas.keeps(place)

    def read(self, *, previous_is_on_device: bool) -> list[ReplicaFigures]:
        """Read each engine and its gate; an engine that does not serve reads as zeros."""
        by_index = {replica.index: replica for replica in self._replicas or ()}
        return [
            _read_replica(gate, by_index.get(gate.replica), previous_is_on_device)
            for gate in tuple(self.entrance.gates)
        ]


def _read_replica(
    gate: Gate[RunningEngine], replica: Replica[RunningEngine] | None, previous_is_on_device: bool
) -> ReplicaFigures:
    """Read one engine and its gate, or the gate alone."""
    at_gate = ReplicaFigures(inside=gate.inside, held=gate.held, answering=gate.list_answering())
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
    """Return the bytes on the device by place."""
    before, staged = [each.weights for each in replica.fading], replica.staged
    on_device = not replica.engine.weights.spares_wait_on_host
    if replica.previous is not None and previous_is_on_device and on_device:
        before.append(replica.previous)
    new = [staged] if staged is not None and on_device else []
    live, *rest = replica.engine.weights.held_bytes([replica.engine.weights.live, *before, *new])
    return {
        "live": live,
        "previous": sum(rest[: len(before)]),
        "staged": sum(rest[len(before) :]),
    }
