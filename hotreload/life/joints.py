"""Where the daemon's parts meet: what the boot brings, and what the server and a scrape get of it.

The server and the metrics are there before the engine is: each joint says what they get until then.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotreload.core.entrance import Entrance
from hotreload.core.gate import Gate
from hotreload.core.operator import Operator
from hotreload.core.replica import Replica, Replicas
from hotreload.errors import NotServing
from hotreload.events import Event
from hotreload.json_fields import Fields, attempt_fields
from hotreload.life.running import RunningEngine
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.history import History
from hotreload.picture.picture import Readings, ReplicaReading
from hotreload.picture.status import Status
from hotreload.types import Attempt, By, Generation, Noise


@dataclass(frozen=True, slots=True)
class Serving:
    """What the boot brings: engines behind their gates, and who takes orders for them."""

    replicas: Replicas[RunningEngine]
    operator: Operator | None
    """None on a rank that follows: it takes no orders."""


class Arrival:
    """Holds what serves, from the end of the boot until the daemon leaves."""

    def __init__(self) -> None:
        self.serving: Serving | None = None

    def expect(self) -> Serving:
        """What serves; NotServing while there is nothing."""
        if self.serving is None:
            raise NotServing("the engine is starting", code="booting", retry_after=2)
        return self.serving

    @property
    def operator(self) -> Operator:
        """Who takes orders; NotServing while there is nothing to order."""
        operator = self.expect().operator
        assert operator is not None, "nobody gives a rank that follows an order"
        return operator

    def is_turning(self, within: float) -> bool:
        """Whether any engine's scheduler was seen lately; nobody looks before there is one.

        One that hangs beside others is counted as lost by its own watch.
        """
        engines = [each.engine for each in self.serving.replicas] if self.serving else []
        return not engines or any(engine.is_turning(within) for engine in engines)


class Control:
    """The server's control: whoever takes orders for what serves."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival

    async def reload(self, name: str | None, *, by: By, force: bool) -> asyncio.Future[Attempt]:
        """Ask for a revision; None is the newest."""
        return await self._arrival.operator.reload(name, by=by, force=force)

    async def rehearse(self, name: str | None, *, by: By) -> asyncio.Future[Attempt]:
        """Ask whether a revision would go live; None is the newest."""
        return await self._arrival.operator.rehearse(name, by=by)

    async def rollback(self, number: int | None, *, by: By) -> asyncio.Future[Attempt]:
        """Ask for a generation that was live before; None is the one before this."""
        return await self._arrival.operator.rollback(number, by=by)

    async def perturb(self, noise: Noise, *, by: By) -> asyncio.Future[Attempt]:
        """Ask for noise on what is live."""
        return await self._arrival.operator.perturb(noise, by=by)

    async def pin(self, *, by: By) -> Generation:
        """Hold the live generation against the source."""
        return await self._arrival.operator.pin(by=by)

    async def unpin(self, *, by: By) -> Generation:
        """Follow the source again."""
        return await self._arrival.operator.unpin(by=by)


@dataclass(frozen=True, slots=True)
class View:
    """The documents that the server shows."""

    _status: Status
    _history: History
    _checkpoints: Checkpoints

    def status(self) -> Fields:
        """Everything /status says."""
        return self._status.snapshot()

    def ready(self) -> tuple[bool, list[str]]:
        """Whether requests are answered, and why not."""
        return self._status.ready()

    def history(self) -> Fields:
        """Everything /history says."""
        return self._history.snapshot()

    async def checkpoints(self, most: int) -> Fields:
        """Everything /checkpoints says."""
        return await self._checkpoints.snapshot(most)

    def leaves(self) -> Fields:
        """Everything /leaves says."""
        return self._status.leaves()

    def attempt(self, attempt: Attempt) -> Fields:
        """One attempt, as in the history."""
        return attempt_fields(attempt)

    def event(self, event: Event) -> Fields:
        """One event, its name under `event`."""
        return self._status.event(event)

    def live(self) -> Generation | None:
        """Who answers; None while booting."""
        return self._status.live


def readings(
    *,
    entrance: Entrance[RunningEngine],
    arrival: Arrival,
    previous_is_on_device: bool,
    heard: Callable[[], Mapping[int, float]] = dict,
) -> Readings:
    """The numbers of engines and gates; plain ones while nothing serves."""

    def replicas() -> list[ReplicaReading]:
        serving = arrival.serving.replicas if arrival.serving else ()
        by_index = {replica.index: replica for replica in serving}
        return [
            _reading(gate, by_index.get(gate.replica), previous_is_on_device)
            for gate in tuple(entrance.gates)
        ]

    return Readings(
        replicas=replicas,
        answering=entrance.answering,
        heard=heard,
    )


def _reading(
    gate: Gate[RunningEngine], replica: Replica[RunningEngine] | None, previous_is_on_device: bool
) -> ReplicaReading:
    """One engine, as it is read; of one that does not serve who is at its gate."""
    at_gate = ReplicaReading(inside=gate.inside, held=gate.held, answering=gate.answering())
    if replica is None:
        return at_gate
    return dataclasses.replace(
        at_gate,
        load=replica.engine.load,
        recompiles=replica.engine.recompiles,
        staged_bytes=replica.staged_bytes,
        weights=_weights_held(replica, previous_is_on_device),
    )


def _weights_held(replica: Replica[RunningEngine], previous_is_on_device: bool) -> dict[str, int]:
    """Bytes on the device by place."""
    before = [each.weights for each in replica.fading]
    on_device = not replica.engine.spares_wait_on_host
    if replica.previous is not None and previous_is_on_device and on_device:
        before.append(replica.previous)
    return {
        "live": replica.live.bytes,
        "previous": sum(each.bytes for each in before),
        "staged": replica.staged.bytes if replica.staged and on_device else 0,
    }
