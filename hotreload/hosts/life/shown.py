"""Status of a follower: the same as any daemon's, of its own part of the engine."""

from hotreload.core.replica import Replica, Replicas
from hotreload.events import GenerationLive
from hotreload.hosts.engine.rank_engine import RankEngine
from hotreload.life.common import Common
from hotreload.life.joints import Serving
from hotreload.life.parts import choose_mode
from hotreload.life.running import RunningEngine
from hotreload.types import Generation, Lease


class FollowerStatus:
    """Opens the gate, which nobody comes to, and tells of what is live behind it."""

    def __init__(self, common: Common) -> None:
        self._settings = common.settings
        self._gate = common.entrance.gates[0]
        self._arrival = common.arrival
        self._publish = common.publish
        self._replica: Replica[RunningEngine] | None = None

    def __call__(self, engine: RankEngine, live: Generation) -> None:
        """This is live now, in this rank's part of the engine."""
        if self._replica is None:
            chosen = choose_mode(self._settings, engine)
            self._replica = Replica(engine, self._gate, live, chosen.mode)
            self._arrival.serving = Serving(Replicas({0: self._replica}), None)
            self._publish(chosen)
            self._replica.open()
        else:
            self._replica.live = live
            self._gate.change(Lease(live, engine))
        self._publish(GenerationLive(live))
