"""Status of a follower: the same as any daemon's, of its own part of the engine."""

from hotreload.core.replica import Replica, Replicas, chosen_mode
from hotreload.events import GenerationLive, Publish
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.life.running import RunningEngine
from hotreload.life.serving_slot import ServingSlot
from hotreload.types import Generation, Lease, Mode


class FollowerStatus:
    """Opens the gate, which nobody comes to, and tells of what is live behind it."""

    def __init__(self, slot: ServingSlot, wished: Mode, publish: Publish) -> None:
        self._slot = slot
        self._gate = slot.entrance.gates[0]
        self._wished = wished
        self._publish = publish
        self._replica: Replica[RunningEngine] | None = None

    def __call__(self, engine: RankEngine, live: Generation) -> None:
        """This is live now, in this rank's part of the engine."""
        if self._replica is None:
            chosen = chosen_mode(self._wished, engine)
            self._replica = Replica(engine, self._gate, live, chosen.mode)
            self._slot.fill(Replicas({0: self._replica}))
            self._publish(chosen)
            self._replica.open()
        else:
            self._replica.live = live
            self._gate.change(Lease(live, engine))
        self._publish(GenerationLive(live))
